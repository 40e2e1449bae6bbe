"""Malformed rows: counted, the first few kept, and an error past a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import DataError

SAMPLES_KEPT = 5
TEXT_CHARACTERS = 80


def printable(text: bytes, limit: int = TEXT_CHARACTERS) -> str:
    """At most `limit` characters of `text` with whatever a terminal might take amiss escaped; any bytes."""
    # Cut before decoding too: a line may have a million bytes, of which each character needs at most four.
    decoded = text[: 4 * limit].decode("utf-8", "backslashreplace")
    escaped = decoded.encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


@dataclass(frozen=True)
class BadRow:
    """One malformed row: its file, its line (from 1; in Parquet its row, from 1), why, and its text, cut."""

    path: str
    line: int
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.text}"


class BadRows:
    """Counts malformed rows over all that one reader reads. Owned by one thread.

    Attributes:
        limit: how many are borne (`data.max_bad_rows`).
        count: how many there were.
        first: the first SAMPLES_KEPT of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.first: list[BadRow] = []

    def add(self, path: str, line: Callable[[], int], why: str, text: bytes) -> None:
        """Counts a row; `line` is called only for a row that is kept, as finding the number may cost a read.

        Raises DataError when there are now more than `limit`.
        """
        self.count += 1
        if len(self.first) < SAMPLES_KEPT:
            self.first.append(BadRow(path, line(), why, printable(text)))
        self._check(path)

    def add_all(self, others: BadRows) -> None:
        """Counts those that were counted elsewhere; raises as `add` does."""
        self.count += others.count
        self.first += others.first[: SAMPLES_KEPT - len(self.first)]
        if others.first:
            self._check(others.first[-1].path)

    def _check(self, path: str) -> None:
        if self.count > self.limit:
            raise DataError(
                f"{self.count} malformed rows, the first of them at {self.first[0]}",
                where=path,
                remedy=f"mend the rows, or the job file's data section, or set data.max_bad_rows "
                f"(now {self.limit}) higher",
            )
