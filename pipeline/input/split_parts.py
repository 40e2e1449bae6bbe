"""Checks of a split: each part has rows, and no row is in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..data.files.paths import file_identity
from ..data.span import Span
from ..errors import DataError
from .job_input import JobInput
from .sample import UnreportedBadRows


def require_rows(source: JobInput, parts: Mapping[str, Sequence[Span]], patterns: Sequence[str]) -> None:
    """Raise DataError for a drawn part without a row.

    `parts` are by the words that name them. Files are read up to the first row of each part.
    """
    for part, spans in parts.items():
        bad_rows = UnreportedBadRows()
        if not any(len(chunk.examples) for span in spans for chunk in source.chunks(span, bad_rows)):
            raise no_rows(part, patterns)


def no_rows(part: str, patterns: Sequence[str]) -> DataError:
    """Return the error for an empty part, such as "to test on"."""
    return DataError(
        f"data.split leaves no row {part}",
        where=", ".join(patterns),
        remedy="change the fractions or times of [data.split], leave that part out, or give more rows",
    )


def require_own_files(spans: Sequence[Span]) -> None:
    """Raise DataError for a file under two names.

    Its rows would be drawn twice, into several parts.
    """
    names: dict[str, str] = {}
    for path in dict.fromkeys(span.path for span in spans):
        other = names.setdefault(file_identity(path), path)
        if other != path:
            raise DataError(
                f"is the same file as {other}, so its rows would be in several parts of data.split",
                where=path,
                remedy="leave one of the two out of data.path",
            )
