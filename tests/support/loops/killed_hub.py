"""A hub in a process of its own, which is killed and comes back."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from shadowsync.attached.hub.checkpoint import TABLES
from shadowsync.tests.support.jobs.processes import Process, Starter, free_ports, wait_until

SECONDS = 300.0


def notice_soon(patch: pytest.MonkeyPatch) -> None:
    """Have a module of tables in this process notice within 3 s that its hub is gone, not within 15."""
    patch.setattr("shadowsync.attached.tables.connection.GONE_TIMEOUTS", 10)


def await_tables_checkpoint(place: Path) -> None:
    """Return when the hub with this folder has a checkpoint of its tables that was begun after this call."""
    manifest, seen = place / TABLES / "checkpoint" / "manifest.json", [b""]

    def is_new() -> bool:
        # While a newer one takes its place there is none.
        with contextlib.suppress(FileNotFoundError):
            if (found := manifest.read_bytes()) not in seen:
                seen.append(found)
                return True
        return False

    # The first may be there already, and the second have been under way.
    is_new()
    for _ in range(2):
        wait_until(is_new, "a checkpoint", SECONDS)


def start_hub(starter: Starter, folder: Path, *arguments: str) -> tuple[Process, str]:
    """Start a hub in a process of its own, whose book comes into the folder; give its address, too."""
    announce = folder / "hub.txt"
    announce.unlink(missing_ok=True)
    files = ("--announce", str(announce), "--book", str(folder / "book.json"))
    process = starter.fork("hub", *arguments, *files)
    wait_until(
        lambda: (announce.exists() and announce.read_text()) or process.poll() is not None,
        "the hub listens",
        SECONDS,
    )
    assert process.poll() is None, process.text()
    return process, announce.read_text()


def start_ranks(starter: Starter, script: Path, *arguments: str, by_rank: bool = False) -> list[Process]:
    """Start a script as torchrun does, with two ranks; with `by_rank` its first argument is the rank."""
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    variables["MASTER_PORT"] = str(free_ports(1))
    return [
        starter.fork(
            *([str(rank)] if by_rank else []),
            *arguments,
            script=script,
            environment=variables | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]


class KilledHub:
    """A hub in a process of its own, which can be killed and started again.

    Args:
        until_empty: whether it ends by itself once nobody is there, or when `ended` is called.
    """

    def __init__(
        self,
        starter: Starter,
        folder: Path,
        *settings: str,
        node_timeout_seconds: int = 30,
        until_empty: bool = True,
    ) -> None:
        self._starter, self._folder, self._until_empty = starter, folder, until_empty
        self.book, self.place = folder / "book.json", folder / "hub"
        given = ("--dir", str(self.place), *settings)
        for text in (f"run.node_timeout_seconds={node_timeout_seconds}", "sync.timeout_seconds=10"):
            given = (*given, "--set", text)
        self._start(*given)

    def _start(self, *arguments: str) -> None:
        end = ("--until-empty",) if self._until_empty else ()
        self.process, self.address = start_hub(self._starter, self._folder, *arguments, *end)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def come_back(self, *options: str) -> None:
        """Start again, from the folder; at the address where it was."""
        before = self.address
        self._start("--recover", str(self.place), *options)
        assert self.address == before

    def be_another(self, *options: str) -> None:
        """Start a hub that knows nothing of the dead one, at its address."""
        before = self.address
        self.place = self._folder / "another"
        self._start("--dir", str(self.place), "--bind", before.removeprefix("tcp://"), *options)
        assert self.address == before

    def ended(self) -> dict[str, Any]:
        """Its book, once the last loop has left."""
        if not self._until_empty:
            self.process.interrupt()
        assert self.process.wait(SECONDS) == 0, self.process.text()
        found: dict[str, Any] = json.loads(self.book.read_text())
        return found
