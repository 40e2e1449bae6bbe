"""Spans: the pieces of the input that the coordinator hands to readers."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import DataError
from .bad_rows import printable
from .parquet import row_groups
from .schema import FeatureShape
from .shuffle import SPANS, permutation
from .sources import compression_of, line_blocks

_PEEK_BYTES = 1 << 16
_Piece = tuple[Literal["bytes", "stream", "row_groups"], int, int]


@dataclass(frozen=True)
class Span:
    """A piece of one input file.

    Attributes:
        number: its place in the plan, from 0.
        path: the file.
        kind: "bytes", a byte range of a plain text file, which has the lines that begin in it; "stream", a
            whole compressed text file; "row_groups" of a Parquet file.
        start: first byte, or 0, or first row group.
        stop: one past the last: byte of the file as it is on disk, or row group.
    """

    number: int
    path: str
    kind: Literal["bytes", "stream", "row_groups"]
    start: int
    stop: int


def plan_spans(
    patterns: Sequence[str], data_format: str, span_bytes: int, shape: FeatureShape | None = None
) -> list[Span]:
    """Cuts all files that match into spans of about `span_bytes` on disk, in the order of their paths.

    The plan depends on the files' names, sizes and (Parquet) row groups alone. Opens each file and reads at
    most its first 64 KiB, and with `shape` checks that the columns are there: in Parquet by name and type, in
    text by their number, which must be right in one of these first lines.

    Raises DataError, which names the file and a remedy, for a pattern that matches no file, and for a file
    that is empty, cannot be read, is of another format, or lacks columns.
    """
    spans: list[Span] = []
    for path in _matching(patterns):
        for kind, start, stop in _pieces(path, data_format, span_bytes, shape):
            spans.append(Span(len(spans), path, kind, start, stop))
    return spans


def span_order(count: int, epoch: int, seed: int, shuffled: bool) -> list[int]:
    """The order in which the spans 0 to count - 1 are handed out in an epoch; as planned unless `shuffled`.

    A pure function, the same on every machine. Raises ValueError for a negative epoch or seed.
    """
    return permutation(count, SPANS, seed, epoch).tolist() if shuffled else list(range(count))


def _matching(patterns: Sequence[str]) -> list[str]:
    """The files that any pattern names, sorted, each once."""
    found: dict[str, str] = {}
    for pattern in patterns:
        # A name may contain the characters of a pattern; what exists is meant.
        names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        files = [name for name in names if os.path.isfile(name)]
        if not files:
            folder = os.path.isdir(pattern)
            raise DataError(
                "is a folder" if folder else "matches no file",
                where=pattern,
                remedy="name its files, for example with /*" if folder else "check the path or pattern",
            )
        found.update((os.path.abspath(name), name) for name in files)
    return [found[key] for key in sorted(found)]


def _pieces(path: str, data_format: str, span_bytes: int, shape: FeatureShape | None) -> Iterator[_Piece]:
    if data_format == "parquet":
        yield from _group_pieces(path, span_bytes, shape)
        return
    if data_format != "criteo_tsv":
        raise DataError(f'data format "{data_format}" is not known', remedy="use criteo_tsv or parquet")
    compressed = compression_of(path) is not None
    size = os.path.getsize(path)
    _check_text(Span(0, path, "stream" if compressed else "bytes", 0, size), shape)
    if compressed:
        yield "stream", 0, size
        return
    count = -(-size // span_bytes)
    for index in range(count):
        yield "bytes", index * size // count, (index + 1) * size // count


def _group_pieces(path: str, span_bytes: int, shape: FeatureShape | None) -> Iterator[_Piece]:
    groups = row_groups(path, shape)
    start = held = 0
    for index, size in enumerate(groups.sizes_bytes):
        if index > start and held + size > span_bytes:
            yield "row_groups", start, index
            start, held = index, 0
        held += size
    yield "row_groups", start, len(groups.sizes_bytes)


def _check_text(whole: Span, shape: FeatureShape | None) -> None:
    """Raises DataError when a text file has no lines, or none of the first has the columns of `shape`."""
    block = next(line_blocks(whole, _PEEK_BYTES), None) if whole.stop else None
    if block is None:
        raise DataError("is empty", where=whole.path, remedy="remove it from data.path, or fill it")
    if shape is None:
        return
    lines = block.buffer[: block.stop].tobytes().split(b"\n")[:-1]
    if all(line.count(b"\t") + 1 != shape.columns for line in lines):
        columns = lines[0].count(b"\t") + 1
        raise DataError(
            f"has {columns} columns in its first line and nowhere near it {shape.columns} "
            f"(label, {shape.dense} numbers, {shape.categorical} ids): {printable(lines[0])}",
            where=whole.path,
            remedy="check that columns are separated by tabs, data.dense_features, data.categorical_features",
        )
