"""Planning of spans, the pieces of the input that readers process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from ...config.kafka import KafkaSection
from ...errors import DataError
from ...text.format import counted
from ..bad_rows import printable
from ..columns.record_schema import RecordSchema
from ..files.kafka_client import PLAINTEXT, is_topic
from ..files.paths import EmptyFile, can_seek, file_size_bytes, match_files, read_errors
from ..files.text import compression_of, line_blocks
from ..files.topic import offset_spans, offsets_of
from ..formats.parquet import IdClasses, check_click_columns, check_parquet, check_raw, row_groups
from ..formats.schema_check import check_groups, check_text
from ..schema import FeatureShape
from ..span import Span
from .shuffle import SPANS, permutation

_PEEK_BYTES = 1 << 16
log = logging.getLogger(__name__)
Shape: TypeAlias = FeatureShape | RecordSchema | None
_SpanBounds: TypeAlias = tuple[Literal["bytes", "stream", "row_groups"], int, int]


def plan_spans(
    patterns: Sequence[str],
    data_format: str,
    span_bytes: int,
    shape: Shape = None,
    ids: IdClasses | None = None,
    kafka: KafkaSection = PLAINTEXT,
) -> list[Span]:
    """Cut all files that match into spans of about `span_bytes` on disk.

    The spans are in the order of the files' paths. The plan depends only on the files' names, sizes and, for
    Parquet, row groups.

    Of each file at most the first 64 KiB or 1,000 rows are read. With `shape` the columns are checked: in
    Parquet by name and type, in Criteo's text by their number, which must be right in one of the first lines.
    With a `RecordSchema` the values of the first rows must fit too. `ids` records the class of each column's
    ids. `kafka` is for topics.

    A file without rows is skipped if a wildcard matches it and others have rows.

    Raises DataError, which names the file and a remedy, for a pattern that matches no file, and for a file
    that is empty, cannot be read, is of another format, lacks columns, or has ids of another class than an
    earlier file.
    """
    spans: list[Span] = []
    empty: list[EmptyFile] = []
    for path in match_files(patterns, kafka):
        if is_topic(path):
            # Not checked here: rows that do not fit are bad rows.
            spans += offset_spans(path, len(spans), *offsets_of(path, kafka))
            continue
        try:
            bounds = list(_span_bounds(path, data_format, span_bytes, shape, ids))
        except EmptyFile as error:
            if path in patterns:
                raise
            empty.append(error)
            continue
        spans += [Span(len(spans) + number, path, *bound) for number, bound in enumerate(bounds)]
    if empty and not spans:
        raise empty[0]
    if empty:
        log.warning("%s without rows skipped, the first is %s", counted(len(empty), "file"), empty[0].where)
    return spans


def span_order(count: int, epoch: int, seed: int, shuffled: bool) -> list[int]:
    """Return the order of `count` spans in an epoch.

    Spans stay in the order of the plan unless `shuffled`. The order depends only on the arguments, on every
    machine. Raises ValueError for a negative epoch or seed.
    """
    return permutation(count, SPANS, seed, epoch).tolist() if shuffled else list(range(count))


def _span_bounds(
    path: str, data_format: str, span_bytes: int, shape: Shape, ids: IdClasses | None
) -> Iterator[_SpanBounds]:
    if data_format == "parquet":
        yield from _row_group_bounds(path, span_bytes, shape, ids)
        return
    if data_format not in ("criteo_tsv", "csv", "tsv"):
        raise DataError(
            f'data format "{data_format}" is not known', remedy="use criteo_tsv, csv, tsv or parquet"
        )
    compressed = compression_of(path) is not None
    with read_errors(path):
        size = file_size_bytes(path)
    parted = not compressed and size is not None and can_seek(path)
    if size == 0:
        raise EmptyFile(path, "is empty")
    if isinstance(shape, RecordSchema):
        check_text(path, shape)
    else:
        _check_lines(Span(0, path, "bytes" if parted else "stream", 0, size or 1), shape)
    if not parted or size is None:
        yield "stream", 0, size or 1
        return
    count = -(-size // span_bytes)
    for index in range(count):
        yield "bytes", index * size // count, (index + 1) * size // count


def _row_group_bounds(
    path: str, span_bytes: int, shape: Shape, ids: IdClasses | None
) -> Iterator[_SpanBounds]:
    def check(arrow: Any) -> None:
        check_raw(path, arrow)
        if isinstance(shape, RecordSchema):
            check_parquet(path, arrow, shape, ids)
        elif shape is not None:
            check_click_columns(path, arrow, shape, ids)

    groups = row_groups(path, check)
    if isinstance(shape, RecordSchema):
        check_groups(path, shape)
    start = held = 0
    for index, size in enumerate(groups.sizes_bytes):
        if index > start and held + size > span_bytes:
            yield "row_groups", start, index
            start, held = index, 0
        held += size
    yield "row_groups", start, len(groups.sizes_bytes)


def _check_lines(whole: Span, shape: FeatureShape | None) -> None:
    """Raise DataError unless some of a text file's first lines fit `shape`."""
    block = next(line_blocks(whole, _PEEK_BYTES), None) if whole.stop else None
    if block is None:
        raise EmptyFile(whole.path, "is empty")
    if shape is None:
        return
    lines = block.buffer[: block.stop].tobytes().split(b"\n")[:-1]
    if all(line.count(b"\t") + 1 != shape.columns for line in lines):
        columns = lines[0].count(b"\t") + 1
        raise DataError(
            f"has {columns} columns in its first line, and no line near it has the expected {shape.columns} "
            f"(label, {shape.dense} numbers, {shape.categorical} ids): {printable(lines[0])}",
            where=whole.path,
            remedy="separate columns by tabs, or change data.dense_features and data.categorical_features",
        )
