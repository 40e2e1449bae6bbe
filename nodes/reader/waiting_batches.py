"""Batches of a reader that wait for a worker, in turns of consecutive ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from ...pipeline.data.batch import Batch

TRAINING = 0


class _Waiting(NamedTuple):
    pass_number: int
    batch: Batch
    turn: int | None


class WaitingBatches:
    """A queue of batches, of which each worker takes its next one.

    Batches of training are divided into turns of `consecutive` batches. The worker that takes a turn's first
    batch holds the turn: no other worker gets the rest of it, unless the holder is lost. Batches to score,
    and those that are queued again, are of no turn.

    Args:
        consecutive: `trainer.consecutive_batches`.
    """

    def __init__(self, consecutive: int = 1) -> None:
        self._consecutive = consecutive
        self._queue: deque[_Waiting] = deque()
        self._offered = 0
        self._left: Counter[int] = Counter()
        self._turns: dict[bytes, int] = {}
        self._held: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def free(self) -> int:
        """Number of batches that no worker's turn reserves."""
        return len(self._queue) - sum(self._left[turn] for turn in self._held)

    def count(self, pass_number: int) -> int:
        return sum(1 for waiting in self._queue if waiting.pass_number == pass_number)

    def add(self, pass_number: int, batch: Batch) -> None:
        """Queue a batch behind all others."""
        turn = None
        if pass_number == TRAINING:
            turn = self._offered // self._consecutive
            self._offered += 1
            self._left[turn] += 1
        self._queue.append(_Waiting(pass_number, batch, turn))

    def add_again(self, pass_number: int, batch: Batch) -> None:
        """Queue a batch before all others."""
        self._queue.appendleft(_Waiting(pass_number, batch, None))

    def drop(self, is_dropped: Callable[[int], bool]) -> list[Batch]:
        """Drop the batches of passes; return them."""
        dropped = [waiting for waiting in self._queue if is_dropped(waiting.pass_number)]
        self._queue = deque(waiting for waiting in self._queue if not is_dropped(waiting.pass_number))
        for waiting in dropped:
            self._taken(waiting)
        return [waiting.batch for waiting in dropped]

    def take(self, worker: bytes, may_have: Callable[[int], bool]) -> tuple[int, Batch] | None:
        """Return the next batch of a worker and its pass; None without one."""
        worker_turn = self._turns.get(worker)
        may_begin = self._is_over(worker_turn)
        for position, waiting in enumerate(self._queue):
            turn = waiting.turn
            is_free = turn in (None, worker_turn) or (may_begin and turn not in self._held)
            if not is_free or not may_have(waiting.pass_number):
                continue
            if turn is not None and turn != worker_turn:
                self.release(worker)
                self._turns[worker], self._held[turn] = turn, worker
            del self._queue[position]
            self._taken(waiting)
            return waiting.pass_number, waiting.batch
        return None

    def release(self, worker: bytes) -> None:
        """Let others have what is left of a worker's turn."""
        self._held.pop(self._turns.pop(worker, -1), None)

    def _taken(self, waiting: _Waiting) -> None:
        if waiting.turn is None:
            return
        self._left[waiting.turn] -= 1
        if self._is_over(waiting.turn):
            del self._left[waiting.turn]
            self._held.pop(waiting.turn, None)

    def _is_over(self, turn: int | None) -> bool:
        """Return whether no batch of a turn waits or will come."""
        return turn is None or (self._left[turn] == 0 and turn < self._offered // self._consecutive)
