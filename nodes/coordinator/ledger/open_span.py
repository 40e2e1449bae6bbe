"""A span that was handed out, and which of its batches are settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class OpenSpan:
    """The settled batches, trained or left out, of a span in one epoch.

    Examples are by batch number.

    Attributes:
        reader: to whom it was handed out; empty while it waits to be handed out again.
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
        """Return the batches that a reader must not send, ascending."""
        return sorted({*self.restored, *self.restored_left_out, *self.done, *self.left_out})

    @property
    def restored_examples(self) -> int:
        """Return the examples of the batches that the resumed run had settled."""
        return sum(self.restored.values()) + sum(self.restored_left_out.values())

    @property
    def settled(self) -> int:
        """Number of batches that need nothing more."""
        return len(self.done) + len(self.left_out) + len(self.restored) + len(self.restored_left_out)

    @property
    def last(self) -> int:
        """The highest number of a settled batch; -1 if there is none."""
        numbers = (self.done, self.left_out, self.restored, self.restored_left_out)
        return max(max(some, default=-1) for some in numbers)

    @property
    def complete(self) -> bool:
        """Whether all of its batches are settled."""
        return self.batches is not None and self.settled == self.batches

    @property
    def trained_examples(self) -> int:
        """Examples trained by this run and the one that it resumes."""
        return self.done_examples + sum(self.restored.values())

    @property
    def settled_examples(self) -> int:
        """Examples settled by this run and the resumed one."""
        return self.done_examples + sum(self.left_out.values()) + self.restored_examples
