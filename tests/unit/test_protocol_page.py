"""docs/protocol.md against the code: every message, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.wire.frames import PROTOCOL_VERSION
from shadowsync.pipeline.wire.messages import MESSAGES

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "protocol.md"

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)

TEXT = PAGE.read_text("utf-8")


def test_the_version_is_that_of_the_code() -> None:
    assert f"`version` is {PROTOCOL_VERSION}; a message of another version" in " ".join(TEXT.split())


def test_every_message_is_there_once_and_nothing_else() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(MESSAGES) > 15
    assert sorted(named) == sorted(MESSAGES)
