"""Rows with what they were made of: examples, their ids' hashes, and which numbers are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..config.job import Job
from ..data.bad_rows import BadRows
from ..data.column_tap import ColumnTap
from ..data.records import Chunk
from ..data.span import Span
from ..input.job_input import JobInput
from ..types import Mask, Uint64Array


@dataclass(frozen=True, slots=True)
class TappedRows:
    """Good rows of a source.

    Attributes:
        chunk: the rows as a model gets them.
        hashes, missing: of the same rows, as `ColumnTap` has them.
        bagged: the multi-hot columns, in the order of the bags.
    """

    chunk: Chunk
    hashes: Mapping[str, Uint64Array]
    missing: Mapping[str, Mask]
    bagged: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.chunk.examples)

    def slice(self, start: int, stop: int) -> TappedRows:
        """Rows start to stop - 1."""
        if (start, stop) == (0, len(self)):
            return self
        hashes = {name: h[start:stop] for name, h in self.hashes.items() if name not in self.bagged}
        for name, lengths in zip(self.bagged, self.chunk.examples.bags.lengths, strict=True):
            first, last = int(lengths[:start].sum()), int(lengths[:stop].sum())
            hashes[name] = self.hashes[name][first:last]
        missing = {name: mask[start:stop] for name, mask in self.missing.items()}
        return TappedRows(self.chunk.slice(start, stop), hashes, missing, self.bagged)


class TappedInput:
    """Reads the source of a job. One thread at a time.

    Attributes:
        source: what plans it.
    """

    def __init__(self, job: Job) -> None:
        self._tap = ColumnTap()
        self.source = JobInput(job, self._tap)
        self._bagged = tuple(table.name for table in job.tables if table.pooling)

    def rows(self, span: Span, bad_rows: BadRows, skip: int = 0) -> Iterator[TappedRows]:
        """The good rows of a span, in order, but the first `skip`; raises as `JobInput.chunks`."""
        for chunk in self.source.chunks(span, bad_rows):
            rows = TappedRows(chunk, self._tap.hashes, self._tap.missing, self._bagged)
            passed = min(skip, len(rows))
            skip -= passed
            if passed < len(rows):
                yield rows.slice(passed, len(rows))
