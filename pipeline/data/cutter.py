"""From a span to its batches, the same ones whenever and wherever it is read (contract 7)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import DataError
from .bad_rows import BadRows
from .batch import Batch, BatchId
from .criteo_tsv import read_tsv
from .parquet import read_parquet
from .schema import Examples, FeatureShape
from .shuffle import row_order, windows
from .spans import Span

__all__ = ["FeatureShape", "cut_batches", "examples_of"]


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
    """Reads a span and yields its batches, numbered from 0.

    The span's good rows, in file order, are permuted within consecutive windows of `shuffle_window` rows (0:
    not at all) by an order made from (seed, epoch, span.number, number of the window), then cut into batches
    of `batch` examples; only the last may have fewer, and a span without a good row gives none. Each array is
    new, C-contiguous, and never written again. Memory: about two windows, of 4 * (1 + D + T) bytes a row, and
    a few MiB, whatever the file.

    One thread may use the iterator; many may run at once with a `bad_rows` each. A batch may be yielded
    before a later row of its span fails. Raises DataError for a file that cannot be read or has another
    shape, and past the limit of `bad_rows`.
    """
    pieces: list[Examples] = []
    number = held = 0
    for rows in _ordered(examples_of(span, data_format, shape, bad_rows), span, epoch, seed, shuffle_window):
        start = 0
        while start < len(rows):
            stop = min(start + batch - held, len(rows))
            pieces.append(rows.slice(start, stop))
            held, start = held + stop - start, stop
            if held == batch:
                yield _batch(BatchId(epoch, span.number, number, seed), pieces)
                pieces, held, number = [], 0, number + 1
    if pieces:
        yield _batch(BatchId(epoch, span.number, number, seed), pieces)


def examples_of(span: Span, data_format: str, shape: FeatureShape, bad_rows: BadRows) -> Iterator[Examples]:
    """The good rows of a span in file order, in chunks of any size; raises as `cut_batches` does."""
    if data_format == "parquet":
        return read_parquet(span, shape, bad_rows)
    if data_format == "criteo_tsv":
        return read_tsv(span, shape, bad_rows)
    raise DataError(f'data format "{data_format}" is not known', remedy="use criteo_tsv or parquet")


def _ordered(
    chunks: Iterator[Examples], span: Span, epoch: int, seed: int, shuffle_window: int
) -> Iterator[Examples]:
    if not shuffle_window:
        yield from chunks
        return
    for window, rows in enumerate(windows(chunks, shuffle_window)):
        yield rows.take(row_order(len(rows), seed=seed, epoch=epoch, span=span.number, window=window))


def _batch(batch_id: BatchId, pieces: list[Examples]) -> Batch:
    # join copies, also a single piece: a batch must not keep a whole window alive, nor see it change.
    rows = Examples.join(pieces)
    return Batch(batch_id, rows.labels, rows.dense, rows.rows)
