"""Batches of a span: the same ones whenever and wherever the span is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...config.kafka import KafkaSection
from ...errors import DataError
from ...types import BatchId
from ..bad_rows import BadRows
from ..batch import Batch
from ..files.kafka_client import PLAINTEXT
from ..formats.criteo_tsv import read_tsv
from ..formats.parquet import read_parquet
from ..schema import ColumnObserver, Examples, FeatureShape
from ..span import Span
from .shuffle import WindowMemory, row_order, windows


def cut_into_batches(
    examples: Iterator[Examples],
    span: Span,
    *,
    epoch: int,
    seed: int,
    batch: int,
    shuffle_window: int,
    memory: WindowMemory | None = None,
) -> Iterator[Batch]:
    """Yield the batches of a span's examples, numbered from 0.

    The span's good rows, in file order, are permuted within consecutive windows of `shuffle_window` rows (0:
    not at all). The order is made from (seed, epoch, span.number, number of the window). The rows are then
    cut into batches of `batch` examples. Only the last batch may have fewer; a span without a good row gives
    none. Each array is new, C-contiguous, and never written again. Memory: about two windows of
    4 * (1 + D + T) bytes a row, and a few MiB, whatever the file.

    One thread may use the iterator. Many iterators may run at once, each with its own `memory`; a new one may
    reuse the memory of one that ended. A batch may be yielded before a later row of its span fails. Raises
    what `examples` raises.
    """
    pieces: list[Examples] = []
    pending = number = 0
    memory = memory or WindowMemory()
    for piece in _batch_pieces(examples, span, epoch, seed, batch, shuffle_window, memory):
        pieces.append(piece)
        pending += len(piece)
        if pending == batch:
            yield _batch(BatchId(epoch, span.number, number, seed), pieces)
            pieces, pending, number = [], 0, number + 1
    if pieces:
        yield _batch(BatchId(epoch, span.number, number, seed), pieces)


def read_examples(
    span: Span,
    data_format: str,
    shape: FeatureShape,
    bad_rows: BadRows,
    observer: ColumnObserver | None = None,
    kafka: KafkaSection = PLAINTEXT,
) -> Iterator[Examples]:
    """Yield the good rows of a span in file order.

    Chunks may have any size. `observer` receives each chunk; `kafka` is for topics. Only one thread may use
    `bad_rows`. Raises DataError for a file that cannot be read or has another shape, and past the limit of
    `bad_rows`.
    """
    if data_format == "parquet":
        return read_parquet(span, shape, bad_rows, observer=observer)
    if data_format == "criteo_tsv":
        return read_tsv(span, shape, bad_rows, observer=observer, kafka=kafka)
    raise DataError(f'data format "{data_format}" is not known', remedy="use criteo_tsv or parquet")


def _batch_pieces(
    chunks: Iterator[Examples],
    span: Span,
    epoch: int,
    seed: int,
    batch: int,
    shuffle_window: int,
    memory: WindowMemory,
) -> Iterator[Examples]:
    """Yield the rows in order, cut where batches end, in new arrays."""
    done = 0
    if not shuffle_window:
        for chunk in chunks:
            start = 0
            while start < len(chunk):
                stop = min(start + batch - (done + start) % batch, len(chunk))
                # Copied: a batch must not keep a whole chunk alive.
                yield Examples.join([chunk.slice(start, stop)])
                start = stop
            done += len(chunk)
        return
    for window, parts in enumerate(windows(chunks, shuffle_window)):
        count = sum(len(part) for part in parts)
        order = row_order(count, seed=seed, epoch=epoch, span=span.number, window=window)
        yield from memory.shuffled(parts, order, lead=-done % batch, batch=batch)
        done += count


def _batch(batch_id: BatchId, pieces: list[Examples]) -> Batch:
    return batch_of(batch_id, pieces[0] if len(pieces) == 1 else Examples.join(pieces))


def batch_of(batch_id: BatchId, examples: Examples) -> Batch:
    """Return examples as a batch, on their own memory where that is contiguous."""
    bags = examples.bags
    return Batch(
        batch_id,
        examples.labels,
        examples.dense,
        np.ascontiguousarray(examples.rows),
        examples.weights,
        bags.rows,
        bags.lengths,
        other_labels=examples.other_labels,
        item_weights=bags.weights,
        keys=np.ascontiguousarray(examples.keys),
        bag_keys=bags.keys,
        groups=np.ascontiguousarray(examples.groups),
    )


def batch_to_score(examples: Examples) -> Batch:
    """Return examples as a batch of no input, for a model that is not trained on it."""
    return batch_of(BatchId(0, 0, 0, 0), examples)
