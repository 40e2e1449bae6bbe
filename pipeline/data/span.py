"""Spans: pieces of the input that the coordinator hands to readers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

SpanKind: TypeAlias = Literal["bytes", "stream", "row_groups", "offsets", "sorted"]
PartName: TypeAlias = Literal["", "train", "validation", "test"]
OF_ALL: Final = "all "
"""What a `digest_of_all` begins with."""


@dataclass(frozen=True)
class Span:
    """A piece of one file, or of all files sorted by time.

    Attributes:
        number: index of the span in the plan, from 0.
        path: the file; for the kind "sorted" the first file.
        kind: "bytes", the lines that begin in a byte range of a plain text file; "stream", a whole text file
            that is compressed or cannot be read in parts; "row_groups" of a Parquet file; "offsets",
            messages of a Kafka topic's partition; "sorted", rows of the whole input sorted by time.
        start: first byte, row group, offset or row, by `kind`; 0 for "stream".
        stop: one past the last byte (of the file as it is on disk), row group, offset or row.
        part: the part of a split (`data.split`) whose rows are used; "" for all rows.
        first, last: only good rows first to last - 1 of the piece are used; last is -1 for all from `first`.
        prepared: digest of the prepared folder's manifest; `digest_of_all` where the rows of a span depend on
            all files of `data.path`; or "". A reader refuses spans of another folder, or of other files.
    """

    number: int
    path: str
    kind: SpanKind
    start: int
    stop: int
    part: PartName = ""
    first: int = 0
    last: int = -1
    prepared: str = ""


def digest_of_all(spans: Iterable[Span]) -> str:
    """Return what identifies the spans of all files together."""
    places = [(span.path, span.kind, span.start, span.stop) for span in spans]
    return f"{OF_ALL}{hashlib.sha256(repr(places).encode()).hexdigest()}"


def to_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the numbers as ascending runs (start, stop), each without its stop.

    Sets of mostly consecutive numbers are sent and saved in this form.
    """
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> frozenset[int]:
    """Return the numbers that `to_runs` received."""
    return frozenset(number for start, stop in runs for number in range(start, stop))
