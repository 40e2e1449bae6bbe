"""Which files would survive a power failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Synced:
    """Notes what is fsynced from now on, until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._inodes: set[int] = set()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def has(self, path: Path) -> bool:
        """Whether a file or a folder is on the disk."""
        return path.stat().st_ino in self._inodes

    def _note(self, descriptor: int) -> None:
        self._inodes.add(os.fstat(descriptor).st_ino)
        self._fsync(descriptor)
