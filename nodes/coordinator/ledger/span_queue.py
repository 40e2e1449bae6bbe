"""The spans that are still to be handed out, in order; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from ....pipeline.data.batches.span_plan import span_order
from ....pipeline.data.span import Span


class SpanQueue:
    """The spans of the training part, and those not handed out yet.

    Owned by the coordinator's loop.

    Args:
        spans: the plan, numbered from 0. There are `epochs` passes over it, each in an order drawn from
            `seed` if `shuffled`.
        complete: (epoch, span) pairs that a resumed run has trained; they are not handed out.
        follows: whether spans may be added until `end` is called, which needs one epoch.

    Attributes:
        follows: whether spans may still be added.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        epochs: int,
        seed: int,
        shuffled: bool,
        complete: Collection[tuple[int, int]] = (),
        follows: bool = False,
    ) -> None:
        self._spans = {span.number: span for span in spans}
        self._complete = complete
        self.follows = follows
        self._planned = (
            (epoch, spans[place])
            for epoch in range(epochs)
            for place in span_order(len(spans), epoch, seed, shuffled)
            if (epoch, spans[place].number) not in complete
        )
        self._added: deque[tuple[int, Span]] = deque()
        self._next = next(self._planned, None)

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans of one epoch."""
        return tuple(self._spans.values())

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, number: int) -> Span:
        return self._spans[number]

    def path_of(self, number: int) -> str:
        """Return a span's file; empty for an unknown number."""
        return self._spans[number].path if number in self._spans else ""

    @property
    def is_empty(self) -> bool:
        """Whether all spans so far are handed out."""
        return self._next is None

    @property
    def is_exhausted(self) -> bool:
        """Whether all spans are handed out, and none can be added."""
        return self._next is None and not self.follows

    def pop(self) -> tuple[int, Span] | None:
        """Return the next (epoch, span); None if there is none now."""
        first = self._next
        if first is not None:
            self._next = next(self._planned, None) or self._pop_added()
        return first

    def add(self, spans: Sequence[Span]) -> None:
        """Append spans, whose numbers continue those of the queue.

        Raises ValueError for other numbers, and after `end`.
        """
        numbers = [span.number for span in spans]
        expected = list(range(len(self._spans), len(self._spans) + len(spans)))
        if not self.follows or numbers != expected:
            raise ValueError(f"spans {numbers} cannot be added after {len(self._spans)} spans")
        self._spans |= {span.number: span for span in spans}
        self._added += ((0, span) for span in spans if (0, span.number) not in self._complete)
        if self._next is None:
            self._next = self._pop_added()

    def end(self) -> None:
        """Let no more spans be added."""
        self.follows = False

    def _pop_added(self) -> tuple[int, Span] | None:
        return self._added.popleft() if self._added else None
