"""A job under `shadowsync run`: the supervisor, and the processes that it starts."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil
from shadowsync.nodes.runtime.process import CLI, runs
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report

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

    def interrupted(self) -> Report:
        """Have Ctrl-C end it; the ledger adds up, and the report is given."""
        self.process.signal(signal.SIGINT)
        return self.ended(ExitCode.INTERRUPTED)

    def ended(self, *codes: int) -> Report:
        """Wait for its end. The exit code is one of these, and the ledger adds up; gives the report."""
        assert self.process.wait() in codes, self.process.text()
        report = self.run.report
        assert report.ledger.adds_up, report.ledger.identities
        return report

    def last_line(self) -> str:
        """What the supervisor said last."""
        return self.process.text().strip().splitlines()[-1]


# Starts an endless job of few nodes, with changes.
Supervise: TypeAlias = Callable[..., Supervised]
