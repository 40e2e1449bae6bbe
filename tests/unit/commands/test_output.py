"""Streams that drop what cannot be written, and write again what can."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from shadowsync.commands.output import ignore_unread_output


def test_what_is_lost_is_only_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    with open(place, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        ignore_unread_output()
        ignore_unread_output()
        print("read", flush=True)
        kept, full = os.dup(place), os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, place)
        print("lost", flush=True)
        # More than any buffer holds: 8 KiB, and 128 KiB since Python 3.14.
        print("lost" * 100_000, end="")
        os.dup2(kept, place)
        print("read again", flush=True)
        os.close(kept)
        os.close(full)
        assert sys.stdout.encoding == "utf-8"
    assert (tmp_path / "log").read_text("utf-8") == "read\nread again\n"
