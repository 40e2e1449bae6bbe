"""How many batches a worker has in flight: as many as hide its links' round trips.

A state machine without I/O and without a clock. Links differ by a factor of a thousand, and so do steps, so
no constant suits all: too few batches in flight leave a worker waiting, and too many make its rows older
than they have to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from ...pipeline.config.job import Job
from ...pipeline.config.row_bytes import state_floats
from ...pipeline.config.trainer import MOST_LOOKUPS_AHEAD
from ...pipeline.errors import JobFileError
from ...pipeline.performance.memory import available_memory_bytes
from ...pipeline.text.format import counted, data_size
from ...pipeline.wire.segment import FLOAT_BYTES

FIRST_CREDIT: Final = 4
# A lone worker needs this: no other one computes while it waits.
FIRST_LOOKUPS_AHEAD: Final = 1
MOST_MEASURED_CREDIT: Final = 256
# Share of the free memory that batches in flight may take.
LARGEST_MEMORY_SHARE: Final = 0.125
# Requests, not batches: each embedding node gets a push of each batch.
LEAST_PENDING_PUSHES: Final = 8
WINDOW_STEPS: Final = 16
WINDOW_SECONDS: Final = 0.5
# A worker that waits for less than this share of its time has enough in flight.
WAITING_SHARE: Final = 0.05
# More in flight has to raise the steps per second by this factor, or it is taken back: a link that is full,
# or a node that is busy, answers a deeper queue only later.
LEAST_GAIN: Final = 1.05
# Windows until a depth that brought nothing is tried again.
WINDOWS_BETWEEN_TRIALS: Final = 16


def require_memory(job: Job, available_bytes: int) -> None:
    """Raise JobFileError if the lookups ahead that the job asks for do not fit into a trainer's memory."""
    ahead = job.trainer.lookups_ahead
    needed_bytes = _bytes_of_all_workers(job) * (1 + ahead) if ahead != "auto" else 0
    if needed_bytes > available_bytes:
        raise JobFileError(
            f"{ahead} batches ahead, of {counted(job.trainer.workers, 'worker')}, need"
            f" {data_size(needed_bytes)} for rows and gradients; {data_size(available_bytes)} are free",
            where="trainer.lookups_ahead",
            remedy='lower it, trainer.batch or trainer.workers, or leave it at "auto"',
        )


def _bytes_of_all_workers(job: Job) -> int:
    """Return the bytes of one batch in flight of each worker: vectors and gradients, one for each list.

    For exact rows also optimizer state, and what a push that is kept adds to rows and state.
    """
    columns = job.embedded_columns
    floats = sum(2 * column.dim for column in columns)
    if job.exact_rows:
        floats += sum(column.dim + 2 * state_floats(column.table.optimizer, column.dim) for column in columns)
    return max(1, FLOAT_BYTES * job.trainer.batch * job.trainer.workers * floats)


@dataclass(slots=True)
class WorkerClock:
    """What a worker has done until now.

    Attributes:
        seconds: time, of any clock that never goes back.
        other_seconds: of it since the worker began, waits that more batches in flight would not shorten.
        reader_seconds: of it, waits for a batch.
        vectors_seconds: of it, waits for vectors and for replies to pushes.
    """

    seconds: float = 0.0
    other_seconds: float = 0.0
    reader_seconds: float = 0.0
    vectors_seconds: float = 0.0

    def since(self, before: WorkerClock) -> WorkerClock:
        """Return the seconds since `before`, without the `other_seconds` meanwhile."""
        return WorkerClock(
            self.seconds - before.seconds - (self.other_seconds - before.other_seconds),
            0.0,
            self.reader_seconds - before.reader_seconds,
            self.vectors_seconds - before.vectors_seconds,
        )


@dataclass(frozen=True, slots=True)
class Depth:
    """Batches in flight of one worker.

    Attributes:
        lookups_ahead: batches whose vectors are requested while an earlier one is computed.
        credit: batches of each reader, with the one that is computed.
    """

    lookups_ahead: int
    credit: int


class Prefetch:
    """One worker's depth; owned by its thread.

    A window of steps that waited much for vectors is followed by one with as many lookups ahead as fit
    steps into the shortest round trip of a lookup; one that waited for a reader by one with twice the
    credit. If that does not raise the steps per second, it is taken back. If vectors always wait for
    the worker, fewer are looked up ahead. Credit is never taken back, since the reader may have used it.

    Args:
        lookups_ahead: `trainer.lookups_ahead`; "auto" begins with `first`.
        credit: `trainer.credit`.
        readers: number of readers.
        first, most: fewest and most lookups ahead, of those that are measured.
    """

    def __init__(
        self,
        lookups_ahead: int | Literal["auto"],
        credit: int | Literal["auto"],
        readers: int,
        first: int = FIRST_LOOKUPS_AHEAD,
        most: int = MOST_LOOKUPS_AHEAD,
    ) -> None:
        self._measures_lookups, self._measures_credit = lookups_ahead == "auto", credit == "auto"
        self._readers = max(1, readers)
        ahead = first if lookups_ahead == "auto" else lookups_ahead
        self.lookups_ahead = ahead
        self.credit = self._credit_for(ahead) if credit == "auto" else credit
        if credit != "auto":
            most = min(most, credit * self._readers - 1)
        self._first_lookups, self._most_lookups = first, max(first, most)
        self._before: WorkerClock | None = None
        self._steps = 0
        self._ready = MOST_LOOKUPS_AHEAD
        self._round_trip_seconds = math.inf
        # The depth and speed before a trial that is under way. The first window of it is not judged: the
        # batches of the new depth are still on their way.
        self._trial: tuple[Depth, float] | None = None
        self._fills = False
        self._windows_to_wait = 0

    @classmethod
    def of(cls, job: Job, readers: int) -> Prefetch:
        """Return that of a worker of this job.

        A deterministic one looks up nothing ahead.
        """
        ahead = 0 if job.run.deterministic else job.trainer.lookups_ahead
        free_bytes = available_memory_bytes() * LARGEST_MEMORY_SHARE
        most = min(MOST_LOOKUPS_AHEAD, int(free_bytes / _bytes_of_all_workers(job)) - 1)
        first = FIRST_LOOKUPS_AHEAD if job.trainer.workers == 1 else 0
        return cls(ahead, job.trainer.credit, readers, first, most)

    def pending_pushes(self, nodes: int) -> int:
        """Return how many pushes to `nodes` embedding nodes may be unanswered."""
        return max(LEAST_PENDING_PUSHES, 2 * (self.lookups_ahead + 1) * nodes)

    def answered(self, round_trip_seconds: float) -> None:
        """Record a lookup whose answer ended a wait, so that its arrival is known."""
        self._round_trip_seconds = min(self._round_trip_seconds, round_trip_seconds)

    def stepped(self, now: WorkerClock, ready: int) -> None:
        """Record a step of training; `ready` further batches had their vectors when it began."""
        if not (self._measures_lookups or self._measures_credit):
            return
        if self._before is None:
            self._before = now
        self._steps += 1
        self._ready = min(self._ready, ready)
        window = now.since(self._before)
        if self._steps >= WINDOW_STEPS and window.seconds >= WINDOW_SECONDS:
            self._decide(window)
            self._before, self._steps, self._ready = now, 0, MOST_LOOKUPS_AHEAD
            self._round_trip_seconds = math.inf

    def _decide(self, window: WorkerClock) -> None:
        speed = self._steps / window.seconds
        self._windows_to_wait = max(0, self._windows_to_wait - 1)
        if self._fills:
            self._fills = False
            return
        if self._trial is not None:
            before, speed_before = self._trial
            self._trial = None
            if speed < LEAST_GAIN * speed_before:
                self.lookups_ahead = before.lookups_ahead
                self._windows_to_wait = WINDOWS_BETWEEN_TRIALS
                return
        depth = self._depth_for(window)
        if depth.lookups_ahead < self.lookups_ahead:
            self.lookups_ahead = depth.lookups_ahead
        elif depth != self._depth and not self._windows_to_wait:
            self._trial, self._fills = (self._depth, speed), True
            self.lookups_ahead, self.credit = depth.lookups_ahead, depth.credit

    @property
    def _depth(self) -> Depth:
        return Depth(self.lookups_ahead, self.credit)

    def _depth_for(self, window: WorkerClock) -> Depth:
        waited = WAITING_SHARE * window.seconds
        ahead, credit = self.lookups_ahead, self.credit
        if self._measures_lookups:
            if window.vectors_seconds > waited and math.isfinite(self._round_trip_seconds):
                busy = window.seconds - window.reader_seconds - window.vectors_seconds
                steps = self._round_trip_seconds * self._steps / max(busy, 1e-9)
                ahead = max(ahead, min(self._most_lookups, math.ceil(steps)))
            elif self._ready > 1:
                ahead = max(self._first_lookups, ahead - (self._ready - 1))
        if self._measures_credit:
            credit = max(credit, self._credit_for(ahead))
            if window.reader_seconds > waited:
                credit = min(MOST_MEASURED_CREDIT, 2 * credit)
        return Depth(ahead, credit)

    def _credit_for(self, ahead: int) -> int:
        """Return the credit of each reader for so many lookups ahead.

        A worker has at least half of its credit at hand (see `ReaderClient`).
        """
        return min(MOST_MEASURED_CREDIT, max(FIRST_CREDIT, -(-2 * (ahead + 1) // self._readers)))
