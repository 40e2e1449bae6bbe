"""A span of one epoch that was handed out, as the ledger keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class OpenSpan:
    """Which batches of a span are settled: trained, or left out. Examples are by the batch's number.

    Attributes:
        reader: to whom it was handed out.
        restored: batches that the resumed run had trained.
        restored_left_out: batches that the resumed run had left out.
        batches, examples: of the whole span; None until it was read.
        done: batches that this run trained.
        left_out: batches that this run left out, and has not trained.
    """

    reader: str
    restored: Mapping[int, int] = field(default_factory=dict)
    restored_left_out: Mapping[int, int] = field(default_factory=dict)
    batches: int | None = None
    examples: int | None = None
    bad_rows: int = 0
    done: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, int] = field(default_factory=dict)
    done_examples: int = 0

    @property
    def skipped(self) -> list[int]:
        """Batches that a reader must not send, ascending."""
        return sorted({*self.restored, *self.restored_left_out})

    @property
    def skipped_examples(self) -> int:
        """Examples of those."""
        return sum(self.restored.values()) + sum(self.restored_left_out.values())

    @property
    def settled(self) -> int:
        """How many batches need nothing more."""
        return len(self.done) + len(self.left_out) + len(self.restored) + len(self.restored_left_out)

    @property
    def last(self) -> int:
        """The highest number of a settled batch; -1 without one."""
        numbers = (self.done, self.left_out, self.restored, self.restored_left_out)
        return max(max(some, default=-1) for some in numbers)

    @property
    def complete(self) -> bool:
        """Whether all of its batches are settled."""
        return self.batches is not None and self.settled == self.batches

    @property
    def trained_examples(self) -> int:
        """By this run and the one that it resumes."""
        return self.done_examples + sum(self.restored.values())

    @property
    def settled_examples(self) -> int:
        """Trained or left out, by this run and the one that it resumes."""
        return self.done_examples + sum(self.left_out.values()) + self.skipped_examples
