"""Counting the rows of spans: how many, whether in the order of time, and how many before a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..data.bad_rows import BadRows
from ..data.sorted_rows import size_of_chunk
from ..data.span import Span
from .job_input import JobInput


@dataclass
class RowCount:
    """What one pass over some spans found.

    Attributes:
        of_span: good rows of each span.
        before: for each moment asked for, the rows whose time is before it.
        in_order: whether no row's time is before that of the row ahead of it, over all spans.
        size_bytes: what all rows would have in memory.
    """

    of_span: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    in_order: bool = True
    size_bytes: int = 0

    @property
    def rows(self) -> int:
        """All good rows."""
        return sum(self.of_span)


def count_rows(
    source: JobInput, spans: Sequence[Span], bad_rows: BadRows, moments: Sequence[float] = ()
) -> RowCount:
    """Reads all of the spans, in memory that does not grow with them.

    Raises DataError for what cannot be read, and past the limit of `bad_rows`.
    """
    count = RowCount(before=[0] * len(moments))
    latest = -np.inf
    for span in spans:
        rows = 0
        for chunk in source.chunks(span, bad_rows):
            rows += len(chunk.examples)
            count.size_bytes += size_of_chunk(chunk)
            if not len(chunk.times):
                continue
            rising = bool((np.diff(chunk.times, prepend=latest) >= 0).all())
            count.in_order = count.in_order and rising
            latest = chunk.times[-1]
            for place, moment in enumerate(moments):
                count.before[place] += int((chunk.times < moment).sum())
        count.of_span.append(rows)
    return count
