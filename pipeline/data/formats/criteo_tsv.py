"""Criteo's text format: a label, numbers and ids, separated by tabs.

Files have no header; any number or id may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...config.kafka import KafkaSection
from ...types import IndexArray
from ..bad_rows import BadRows, printable
from ..batch import no_keys
from ..columns.fields import parse_number, parse_numbers
from ..files.kafka_client import PLAINTEXT
from ..files.text import BLOCK_BYTES, MAX_LINE_BYTES, LineBlock, line_blocks, line_numbers, too_long
from ..hashing import hash_fields, table_rows_of
from ..schema import ColumnObserver, Examples, FeatureShape, log_transform
from ..span import Span

_TAB, _NEWLINE, _RETURN, _ZERO = 9, 10, 13, 48


def read_tsv(
    span: Span,
    shape: FeatureShape,
    bad_rows: BadRows,
    block_bytes: int = BLOCK_BYTES,
    observer: ColumnObserver | None = None,
    kafka: KafkaSection = PLAINTEXT,
) -> Iterator[Examples]:
    """Yield the good rows of a span of text, in file order.

    A row is good when it has 1 + D + T columns, its label is 0 or 1, and each dense column is empty or a
    decimal number; other rows go to `bad_rows`. A dense value becomes sign(x) * log1p(|x|), a missing one
    0.0. Ids may have any bytes or none, and are hashed (hashing.py). Lines end in a newline, or in a return
    and a newline. `block_bytes` changes only the size of the chunks. `observer` receives each chunk;
    `kafka` is for topics. Raises DataError as `line_blocks` does, and past the limit of `bad_rows`.
    """
    lines_read = 0
    line_number = line_numbers(span)
    for block in line_blocks(span, block_bytes, kafka=kafka):
        fields = _split(block, shape.columns)
        if int(np.diff(fields.lines).max()) > MAX_LINE_BYTES + 1:
            raise too_long(span.path)
        labels = _labels(block, fields)
        numbers = slice(1, 1 + shape.dense)
        starts = fields.starts[numbers]
        dense = parse_numbers(block.buffer, starts, fields.ends[numbers] - starts)
        valid = (labels <= 1) & ~np.isnan(dense).any(axis=0)
        bad = np.ones(len(fields.lines) - 1, np.bool_)
        bad[fields.good[valid]] = False
        for line in np.flatnonzero(bad).tolist():
            text = block.buffer[fields.lines[line] : fields.lines[line + 1]].tobytes().rstrip(b"\r\n")
            bad_rows.add(span.path, partial(line_number, lines_read + line), _reason(text, shape), text)
        yield _examples(block, fields, shape, labels, dense, valid, observer)
        lines_read += len(fields.lines) - 1


@dataclass(frozen=True, slots=True)
class _Fields:
    """The places of the fields in a block.

    Attributes:
        lines: int64 [n + 1], where each line starts, and where the last line ends.
        good: int64 [k], indices of the lines that have the right number of columns.
        starts, ends: int64 [columns, k], C-contiguous: the first byte, and one past the last, of each field.
    """

    lines: IndexArray
    good: IndexArray
    starts: IndexArray
    ends: IndexArray


def _examples(
    block: LineBlock,
    fields: _Fields,
    shape: FeatureShape,
    labels: NDArray[np.uint8],
    dense: NDArray[np.float64],
    valid: NDArray[np.bool_],
    observer: ColumnObserver | None,
) -> Examples:
    starts, ends = fields.starts[1 + shape.dense :], fields.ends[1 + shape.dense :]
    if not valid.all():
        labels, dense = labels[valid], dense[:, valid]
        starts, ends = np.compress(valid, starts, axis=1), np.compress(valid, ends, axis=1)
    hashes = hash_fields(block.buffer, starts, ends - starts, range(len(starts)))
    if observer is not None:
        numbers = slice(1, 1 + shape.dense)
        missing = (fields.starts[numbers] == fields.ends[numbers])[:, valid]
        observer.show(
            dict(zip(shape.categorical_names, hashes, strict=True)),
            dict(zip(shape.dense_names, missing, strict=True)),
        )
    return Examples(
        labels.astype(np.float32),
        np.ascontiguousarray(log_transform(dense).T),
        table_rows_of(hashes, shape.table_rows),
        keys=hashes[list(shape.growing)] if shape.growing else no_keys(),
    )


def _split(block: LineBlock, columns: int) -> _Fields:
    data = block.buffer[: block.stop]
    # Tab and newline are neighbours and smaller bytes wrap around, so one comparison finds both.
    separators = np.flatnonzero((data - np.uint8(_TAB)) <= _NEWLINE - _TAB)
    last = np.flatnonzero(data[separators] == _NEWLINE)
    lines = np.concatenate([[0], separators[last] + 1])
    good = np.flatnonzero(np.diff(last, prepend=-1) == columns)
    if len(good) * columns == len(separators):
        ends = np.ascontiguousarray(separators.reshape(-1, columns).T)
    else:
        ends = separators[last[good] + np.arange(1 - columns, 1)[:, None]]
    starts = np.empty_like(ends)
    starts[0] = lines[good]
    np.add(ends[:-1], 1, out=starts[1:])
    # Before an empty field is a tab or a newline (data[-1] too), never a return, so it does not end before
    # its start.
    ends[-1] -= data[ends[-1] - 1] == _RETURN
    return _Fields(lines, good, starts, ends)


def _labels(block: LineBlock, fields: _Fields) -> NDArray[np.uint8]:
    """Return labels, uint8 [k]; a value above 1 marks a bad label."""
    labels: NDArray[np.uint8] = block.buffer[fields.starts[0]] - np.uint8(_ZERO)
    labels[fields.ends[0] - fields.starts[0] != 1] = 255
    return labels


def _reason(text: bytes, shape: FeatureShape) -> str:
    """Return what is wrong with a bad line."""
    fields = text.split(b"\t")
    if len(fields) != shape.columns:
        return f"{len(fields)} columns, not {shape.columns}"
    if fields[0] not in (b"0", b"1"):
        return f"label '{printable(fields[0], 20)}' is neither 0 nor 1"
    for name, field in zip(shape.dense_names, fields[1:], strict=False):
        if field and parse_number(field) != parse_number(field):
            return f"{name} '{printable(field, 20)}' is not a number"
    raise AssertionError(f"no fault found in a row that was taken as malformed: {printable(text)}")
