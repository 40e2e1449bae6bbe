"""Which pushes of each worker a shard has applied, as its answers to that worker's trainer say it.

`storage.applied` knows batches, whoever trained them; this knows the pushes of one connection by their
numbers, so that a trainer can tell which of its own pushes an answer lacks. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_NUMBERS: Final = 4096
"""Of one answer: as many as a list in a message may have."""
_NUMBERS_OF_WORKER: Final = 3


@dataclass(slots=True)
class _Numbers:
    """The applied pushes of a worker: all up to `through`, and those of `later`."""

    through: int = 0
    later: set[int] = field(default_factory=set)

    def add(self, sequence: int, answered_below: int) -> None:
        self.through = max(self.through, answered_below - 1)
        if sequence > self.through:
            self.later.add(sequence)
        while self.through + 1 in self.later:
            self.through += 1
        self.later = {number for number in self.later if number > self.through}


class AppliedPushes:
    """The applied pushes of all workers that number them.

    Used by the node's service thread only. Memory is O(workers + pushes that came out of order), at most
    `MOST_NUMBERS` for a trainer, if each `add` follows a `require_room`.
    """

    def __init__(self) -> None:
        self._trainers: dict[str, dict[int, _Numbers]] = {}

    def add(self, trainer: str, worker: int, sequence: int, answered_below: int) -> None:
        """Record a push of a trainer's worker; see `messages.Push`."""
        workers = self._trainers.setdefault(trainer, {})
        workers.setdefault(worker, _Numbers()).add(sequence, answered_below)

    def require_room(self, trainer: str) -> None:
        """Raise ValueError if an answer could not list one push more of a trainer.

        Its unanswered pushes are far fewer, so it gave them numbers that it did not send.
        """
        workers = self._trainers.get(trainer, {}).values()
        used = sum(_NUMBERS_OF_WORKER + len(numbers.later) for numbers in workers)
        if used + _NUMBERS_OF_WORKER + 1 > MOST_NUMBERS:
            raise ValueError(f"the pushes of {len(workers)} workers have gaps; an answer cannot list them")

    def of_trainer(self, trainer: str) -> tuple[int, ...]:
        """Return `Vectors.applied` for a trainer: the pushes of all its workers."""
        workers = self._trainers.get(trainer, {})
        return tuple(
            number
            for worker, numbers in workers.items()
            for number in (worker, numbers.through, len(numbers.later), *sorted(numbers.later))
        )

    def drop(self, trainer: str) -> None:
        """Forget the workers of a trainer that is gone."""
        self._trainers.pop(trainer, None)


def parse_applied(applied: Sequence[int]) -> dict[int, tuple[int, frozenset[int]]]:
    """Return the last push before which all are applied, and later ones, by worker, from `Vectors.applied`.

    Raises ValueError for numbers that cannot be.
    """
    numbers, parsed = list(applied), {}
    start = 0
    while start < len(numbers):
        worker, through, count = numbers[start : start + 3] if start + 3 <= len(numbers) else (0, 0, -1)
        end = start + 3 + count
        if count < 0 or end > len(numbers):
            raise ValueError(f"{len(numbers)} numbers of applied pushes do not fit together")
        parsed[worker] = (through, frozenset(numbers[start + 3 : end]))
        start = end
    return parsed
