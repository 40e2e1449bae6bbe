"""The count of malformed rows, its limit, and the first few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..config.data import DataSection
from ..errors import DataError
from ..text.format import counted, percent
from .span import Span

SAMPLES_KEPT = 5
TEXT_CHARACTERS = 80
FRACTION_ROWS = 1000
"""Of fewer rows, one in a small first file or in the first messages of a topic would be a large share."""


def printable(text: bytes, limit: int = TEXT_CHARACTERS) -> str:
    """Return at most `limit` characters of `text`, safe for a terminal.

    `text` may have any bytes; special characters are escaped.
    """
    # Cut before decoding too, because a line may have a million bytes. A character has at most four.
    decoded = text[: 4 * limit].decode("utf-8", "backslashreplace")
    escaped = decoded.encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


@dataclass(frozen=True)
class BadRow:
    """One malformed row: file, line, reason, and shortened text.

    `line` counts from 1; in Parquet it is the number of the row, from 1.
    """

    path: str
    line: int
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.text}"


def too_many_bad_rows(
    bad_rows: int, rows: int, data: DataSection, passes: int = 1, *, whole: bool = True
) -> str:
    """Say that more rows are malformed than [data] allows; "" if not.

    `rows` is the number of all rows read, malformed ones included, in `passes` over the data. A pass meets
    the malformed rows of the pass before it again. Unless the input is read `whole`, a fraction of fewer rows
    than FRACTION_ROWS says nothing.
    """
    malformed = counted(bad_rows, "malformed row")
    if bad_rows > data.max_bad_rows * passes:
        return f"{malformed}; data.max_bad_rows allows {data.max_bad_rows:,}{_each_of(passes)}"
    if bad_rows > data.max_bad_fraction * rows and (whole or rows >= FRACTION_ROWS):
        share = f"{percent(bad_rows / rows, 1)} of {rows:,} rows"
        return f"{malformed}, {share}; data.max_bad_fraction allows {data.max_bad_fraction:g} of them"
    return ""


def own_bad_rows(spans: Iterable[Span], bad_rows: int) -> int:
    """Return the malformed rows of `spans`, of `bad_rows` in all, that training does not count.

    A part that is drawn is read from the whole files, with their malformed rows.
    """
    return 0 if any(span.part for span in spans) else bad_rows


def _each_of(passes: int) -> str:
    return f" in each of {passes} epochs" if passes > 1 else ""


class BadRows:
    """Count the malformed rows of one reader.

    Only one thread may use it.

    Attributes:
        limit: number of allowed bad rows in a pass over the data (`data.max_bad_rows`).
        passes: number of passes that have begun.
        count: number of bad rows so far.
        first: the first SAMPLES_KEPT bad rows.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.passes = 1
        self.count = 0
        self.first: list[BadRow] = []

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        """Count a row; raise DataError past `limit` for each pass.

        `line` gives the row's number. It is called only for a row that is stored, because it may have to read
        the file.
        """
        self.count += 1
        if len(self.first) < SAMPLES_KEPT:
            self.first.append(BadRow(path, line(), why, printable(text)))
        self._check(path)

    def add_all(self, others: BadRows) -> None:
        """Add rows that were counted elsewhere; raises as `add` does."""
        self.count += others.count
        self.first += others.first[: SAMPLES_KEPT - len(self.first)]
        if others.first:
            self._check(others.first[-1].path)

    def _check(self, path: str) -> None:
        if self.count > self.limit * self.passes:
            raise DataError(
                f"{counted(self.count, 'malformed row')}, more than data.max_bad_rows = {self.limit}"
                f"{_each_of(self.passes)}; the first is {self.first[0]}",
                where=path,
                remedy="correct the rows or the job file's [data] (texts that stand for no value belong in"
                " data.missing), or raise data.max_bad_rows",
            )


class UnreportedBadRows(BadRows):
    """Count bad rows that the actual reader of the input will report."""

    def __init__(self) -> None:
        super().__init__(limit=0)

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        del path, line, why, text
        self.count += 1

    def add_all(self, others: BadRows) -> None:
        """Add rows that were counted elsewhere."""
        self.count += others.count
