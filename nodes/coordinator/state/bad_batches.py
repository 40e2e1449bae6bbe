"""Count of the batches that trainers left out, and its limit.

A batch is left out because its loss or a gradient is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....pipeline.errors import ExitCode
from ....pipeline.report.document import BadBatch, BadBatches
from ....pipeline.text.format import counted
from ..ledger.records import LeftOut
from .outcome import Stop

LISTED = 5


@dataclass(frozen=True)
class BadBatchSnapshot:
    """The counts, and the first batches as plain values."""

    count: int
    examples: int
    first: list[dict[str, Any]]


class BadBatchCounter:
    """Count of the bad batches of all trainers. Owned by the coordinator's loop.

    Attributes:
        first: the first LISTED of them.
        count, examples: number of all of them, and of their examples.

    Args:
        limit: number that is tolerated, `trainer.max_bad_batches`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.first: list[BadBatch] = []
        self.examples = 0

    def add(self, batch: LeftOut, path_of: Callable[[int], str]) -> None:
        """Add a batch; `path_of` returns the file of a span."""
        self.count += 1
        self.examples += batch.examples
        if len(self.first) < LISTED:
            self.first.append(
                BadBatch(
                    id=(batch.id.epoch, batch.id.span, batch.id.number, batch.id.seed),
                    path=path_of(batch.id.span),
                    examples=batch.examples,
                    trainer=batch.trainer,
                    why=batch.why,
                )
            )

    def snapshot(self) -> BadBatchSnapshot:
        first = [batch.model_dump(mode="json") for batch in self.first]
        return BadBatchSnapshot(self.count, self.examples, first)

    def restore(self, snapshot: BadBatchSnapshot) -> None:
        self.count, self.examples = snapshot.count, snapshot.examples
        self.first = [BadBatch.model_validate(batch) for batch in snapshot.first]

    def report(self) -> BadBatches | None:
        """Return the entry of the report; None without bad batches."""
        if not self.count:
            return None
        return BadBatches(count=self.count, examples=self.examples, limit=self._limit, first=self.first)

    def event(self) -> str:
        """Return the text of the event for the first bad batch."""
        return f"left out {self.first[0]}; up to {self._limit:,} such batches are tolerated"

    def too_many(self) -> Stop | None:
        """Return the reason to stop if there are more than the limit."""
        if self.count <= self._limit:
            return None
        return self._stop(
            f"{counted(self.count, 'batch', 'batches')} with a loss or gradients that no step can be made"
            f" of over all trainers; the limit trainer.max_bad_batches is {self._limit:,}"
        )

    def nothing_else(self) -> Stop | None:
        """Return why a job that trained nothing failed, if it had bad batches."""
        if not self.count:
            return None
        return self._stop(
            f"nothing was trained: each of the {self.count:,} batches of all trainers has a loss or a"
            " gradient that is not finite"
        )

    def _stop(self, what: str) -> Stop:
        text = (
            f"{what}; the first: {self.first[0]}; lower trainer.lr or embedding.lr, or correct what the model"
            " computes from these rows"
        )
        return Stop("failed", text, ExitCode.USAGE, diverged=True)
