"""From a span of a log without a schema straight to its batches."""

from __future__ import annotations

from collections.abc import Iterator

from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.batches.cutter import cut_into_batches, read_examples
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.pipeline.data.span import Span


def cut_batches(
    span: Span,
    shape: FeatureShape,
    *,
    epoch: int = 0,
    seed: int = 1,
    data_format: str = "criteo_tsv",
    batch: int = 64,
    window: int = 0,
) -> Iterator[Batch]:
    """What `read_examples` reads, cut by `cut_into_batches`; begins when the first batch is asked for."""
    examples = read_examples(span, data_format, shape, BadRows(0))
    yield from cut_into_batches(examples, span, epoch=epoch, seed=seed, batch=batch, shuffle_window=window)
