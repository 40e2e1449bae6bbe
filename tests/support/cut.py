"""From a span of a log without a schema straight to its batches."""

from __future__ import annotations

from collections.abc import Iterator

from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.cutter import batches_of, examples_of
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.pipeline.data.span import Span


def cut_batches(
    span: Span,
    *,
    epoch: int,
    seed: int,
    data_format: str,
    shape: FeatureShape,
    batch: int,
    shuffle_window: int,
    bad_rows: BadRows,
) -> Iterator[Batch]:
    """What `examples_of` reads, cut by `batches_of`; begins when the first batch is asked for."""
    examples = examples_of(span, data_format, shape, bad_rows)
    yield from batches_of(examples, span, epoch=epoch, seed=seed, batch=batch, shuffle_window=shuffle_window)
