"""Which faults are due in a running job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from .schedule import ScheduledFault


class DueFaults(Protocol):
    """Hands out faults as a job goes on."""

    def take(self, batches: int, trained_seconds: float) -> list[ScheduledFault]:
        """Return the faults that are due now, each once.

        Args:
            batches: trained batches of this run of the job.
            trained_seconds: from the job's first trained batch to the last one so far. So no fault of a
                soak comes when all is trained.
        """

    def end_run(self) -> list[ScheduledFault]:
        """Return the faults that do not come any more, since the run has ended."""


class FaultsOfJob:
    """The faults of one job, by the share of its batches; when it is resumed, none are left.

    Args:
        batches: number of the whole job's batches.
    """

    def __init__(self, faults: Sequence[ScheduledFault], batches: int) -> None:
        self._left = list(faults)
        self._batches = batches

    def take(self, batches: int, trained_seconds: float) -> list[ScheduledFault]:  # noqa: ARG002
        """See `DueFaults.take`."""
        due = [
            fault
            for fault in self._left
            if fault.after is not None and batches >= fault.after * self._batches
        ]
        self._left = [fault for fault in self._left if fault not in due]
        return due

    def end_run(self) -> list[ScheduledFault]:
        """See `DueFaults.end_run`."""
        left, self._left = self._left, []
        return left


class SoakFaults:
    """The faults of a soak, by the seconds that its jobs have trained; a job that is resumed gets more.

    Attributes:
        soak_seconds: seconds that the jobs have trained which ended.
    """

    def __init__(self, faults: Iterator[ScheduledFault]) -> None:
        self._faults = faults
        self._next = next(faults)
        self.soak_seconds = 0.0

    def take(self, batches: int, trained_seconds: float) -> list[ScheduledFault]:
        """See `DueFaults.take`."""
        due: list[ScheduledFault] = []
        # Of several that came while nothing was trained, until the job was resumed, one is enough.
        while batches and self._next.soak_seconds <= self.soak_seconds + trained_seconds:
            due = [self._next]
            self._next = next(self._faults)
        return due

    def end_run(self) -> list[ScheduledFault]:
        """See `DueFaults.end_run`."""
        return []
