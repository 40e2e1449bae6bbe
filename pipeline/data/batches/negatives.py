"""Negative downsampling: a share of the training part's negatives is kept.

Scores are calibrated back by `Job.logit_offset`. Source: He et al., ADKDD 2014, Section 6.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..formats.records import RecordChunk
from ..hashing import hash_bytes, mix64, mix_numbers
from ..span import Span

_DRAW: Final = 4


class NegativeSampler:
    """Keep all positives of spans, and a share of their negatives.

    Whether a negative is kept is a function of (seed, name of the file as `RowNames` has it, start of the
    span, row), so each reading of a span keeps the same negatives. Used by one thread.

    Attributes:
        dropped: number of negatives dropped so far.

    Args:
        share: share of the negatives to keep, above 0; at 1 all are kept.
        seed: `data.split.seed`.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._seed = seed
        self.dropped = 0

    def kept(self, span: Span, name: str, chunks: Iterator[RecordChunk]) -> Iterator[RecordChunk]:
        """Yield the rows of a span that are kept, in order.

        `name` is that of its file.
        """
        if self._share == 1.0:
            yield from chunks
            return
        # Sorted rows are numbered over the whole input, other rows within the span's part.
        start, row = (0, span.start) if span.kind == "sorted" else (span.start, span.first)
        hashed = hash_bytes(start, name.encode("utf-8", "surrogateescape"))
        key = np.uint64(mix_numbers(self._seed, _DRAW, hashed))
        for chunk in chunks:
            count = len(chunk.examples)
            rows = np.arange(row, row + count, dtype=np.uint64)
            draws = (mix64(rows ^ key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            keep = np.flatnonzero((chunk.examples.labels == 1.0) | (draws < self._share))
            row += count
            self.dropped += count - len(keep)
            yield chunk.take(keep)
