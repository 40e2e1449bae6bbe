"""A job under `shadowsync run`: the supervisor, and the processes that it starts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil
from shadowsync.nodes.runtime.process import CLI, runs

from .processes import ENOUGH_SECONDS, Process, wait_until
from .runs import RunFolder


@dataclass
class Supervised:
    """A run on its way.

    Attributes:
        process: the supervisor.
        runs: its `run.directory`.
    """

    process: Process
    runs: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.runs / "latest")

    def nodes(self, role: str) -> list[psutil.Process]:
        """The supervisor's processes of a role."""
        found = []
        for child in self.process.offspring():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if runs(child.cmdline(), CLI, role):
                    found.append(child)
        return found

    def node(self, role: str) -> psutil.Process:
        """The one process of a role, or the first."""
        return self.nodes(role)[0]

    def wait_for_batches(self, count: int, seconds: float = ENOUGH_SECONDS) -> None:
        """Waits until the ledger's file has so many, and the job trains."""

        def trained() -> bool:
            return self.run.trains(count) or self.process.poll() is not None

        wait_until(trained, f"{count} batches are trained: {self.process.text()}", seconds)
        assert self.process.poll() is None, self.process.text()

    def last_line(self) -> str:
        """What the supervisor said last."""
        return self.process.text().strip().splitlines()[-1]
