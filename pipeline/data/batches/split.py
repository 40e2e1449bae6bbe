"""The rows of a span that are used, by its part and its range."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...config.data import SplitSection
from ..bad_rows import BadRows
from ..formats.records import RecordChunk
from ..hashing import hash_bytes, mix64, mix_numbers
from ..span import PartName, Span

_DRAW: Final = 3


def drawn_rows(span: Span, name: str, first_row: int, count: int, split: SplitSection) -> NDArray[np.bool_]:
    """Return bool [count]: which rows are in the span's part.

    The rows are those from `first_row` on, counted among the good rows of the span. Each row has a random
    number from 0 to 1, a function of (split.seed, `name`, start of the span, row). `name` is the file's, as
    `RowNames` has it. Rows below
    `split.test` are the test part, the next ones validation, all others training. So the parts of a span
    share no row and leave none out.
    """
    key = mix_numbers(split.seed, _DRAW, hash_bytes(span.start, name.encode("utf-8", "surrogateescape")))
    rows = np.arange(first_row, first_row + count, dtype=np.uint64)
    return part_of_draws(mix64(rows ^ np.uint64(key)), span.part, split)


def part_of_draws(draws: NDArray[np.uint64], part: PartName, split: SplitSection) -> NDArray[np.bool_]:
    """Return bool [count]: which random numbers of 64 bits are in a part."""
    shares = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds: dict[PartName, tuple[float, float]] = {
        "test": (0.0, split.test),
        "validation": (split.test, split.test + split.validation),
        "train": (split.test + split.validation, 1.0),
    }
    low, high = bounds[part]
    mask: NDArray[np.bool_] = (shares >= low) & (shares < high)
    return mask


RowDraw: TypeAlias = tuple[Span, str, int, int]
"""The first arguments of `drawn_rows`."""
RowsOfPart: TypeAlias = Callable[[int, RecordChunk], NDArray[np.bool_]]
"""From the number of good rows of a span before a chunk, and the chunk: which of its rows are used."""


def rows_of_part(
    chunks: Iterator[RecordChunk], choose: RowsOfPart, first_row: int = 0
) -> Iterator[RecordChunk]:
    """Yield the rows of chunks that `choose` takes.

    `first_row` is the number of good rows of the span before the first chunk.
    """
    done = first_row
    for chunk in chunks:
        keep = np.flatnonzero(choose(done, chunk))
        done += len(chunk.examples)
        yield chunk.take(keep)


def rows_of_range(
    chunks: Callable[[BadRows], Iterator[RecordChunk]], span: Span, bad_rows: BadRows
) -> Iterator[RecordChunk]:
    """Yield rows `span.first` to `span.last` - 1 of `chunks`.

    Several ranges may share a piece. Each of its bad rows is still reported once: the earliest range that
    reads a chunk reports the chunk's bad rows.
    """
    gate = _BadRowFilter(bad_rows, reported=span.first == 0)
    done = 0
    with closing(_generator(chunks(gate))) as source:
        for chunk in source:
            count = len(chunk.examples)
            start = min(max(span.first - done, 0), count)
            stop = count if span.last < 0 else min(span.last - done, count)
            if start < stop:
                yield chunk if (start, stop) == (0, count) else chunk.slice(start, stop)
            done += count
            # The range before this one read up to the chunk with row first - 1, and reported its bad rows.
            gate.reported = done >= span.first
            if 0 <= span.last <= done:
                return


def _generator(chunks: Iterator[RecordChunk]) -> Generator[RecordChunk, None, None]:
    yield from chunks


class _BadRowFilter(BadRows):
    """Forward bad rows while `reported` is set."""

    def __init__(self, inner: BadRows, *, reported: bool) -> None:
        super().__init__(inner.limit)
        self._inner = inner
        self.reported = reported

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        if self.reported:
            self._inner.add(path, line, why, text)
