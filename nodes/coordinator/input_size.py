"""How many examples the input will turn out to have, for the progress of a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ...pipeline.config.split_section import SplitSection
from ...pipeline.data.parquet import row_groups
from ...pipeline.data.spans import Span
from ...pipeline.errors import DataError

SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Expected:
    """Examples of all spans of all epochs; `exact` if the files themselves tell."""

    examples: int
    exact: bool


class InputSize:
    """What is expected of each span, corrected by what was read of others. Owned by the coordinator's loop.

    Args:
        weights: of each span by number, in any unit: those that were read tell the examples of a unit.
        examples: how many examples the unit is thought to have; None until a span was read.
        exact: the weights are examples.
    """

    def __init__(
        self, weights: dict[int, float], epochs: int, examples: float | None, *, exact: bool
    ) -> None:
        self._weights = weights
        self._total = sum(weights.values()) * epochs
        self._per_unit = examples
        self._exact = exact
        self._read_weight = 0.0
        self._read_examples = 0

    @classmethod
    def unknown(cls) -> InputSize:
        """Of an input that nothing was asked of yet."""
        return cls({}, 1, None, exact=False)

    @classmethod
    def of(cls, spans: Sequence[Span], epochs: int, split: SplitSection) -> InputSize:
        """From what the files tell: Parquet its rows, plain text the length of its first lines, compressed
        text nothing. A row range counts as its length, a drawn part as its fraction of the rows.

        Opens each file of Parquet once, so a loop calls it on another thread. A file that cannot be opened
        here tells nothing.
        """
        rows = _rows(spans)
        if rows is not None:
            weights = {span.number: _wanted(span, rows[span.number], split) for span in spans}
            return cls(weights, epochs, 1.0, exact=all(_share(span, split) == 1 for span in spans))
        per_byte = _examples_per_byte(spans)
        sizes = {span.number: float(max(1, span.stop - span.start)) for span in spans}
        if per_byte is None:
            # Without the length of a line, nobody knows how much of its file a range is.
            weights = {span.number: sizes[span.number] * _share(span, split) for span in spans}
        else:
            weights = {
                span.number: _wanted(span, sizes[span.number] * per_byte, split) / per_byte for span in spans
            }
        return cls(weights, epochs, per_byte, exact=False)

    def span_read(self, number: int, examples: int, bad_rows: int) -> None:
        """A whole span was read."""
        self._read_weight += self._weights.get(number, 0.0)
        self._read_examples += examples
        if self._exact and self._weights.get(number) != examples + bad_rows:
            # Not every row of the file is of this part of the data.
            self._exact = False

    def expected(self, bad_rows: int) -> Expected | None:
        """Of the whole job, after so many bad rows; None if nothing is known."""
        if self._exact:
            return Expected(int(self._total) - bad_rows, exact=True)
        per_unit = self._read_examples / self._read_weight if self._read_weight else self._per_unit
        if per_unit is None:
            return None
        left = max(0.0, self._total - self._read_weight)
        return Expected(round(self._read_examples + left * per_unit), exact=False)


def _share(span: Span, split: SplitSection) -> float:
    """The fraction of the rows of a span that its part draws."""
    parts = {"": 1.0, "test": split.test, "validation": split.validation}
    return parts.get(span.part, 1.0 - split.test - split.validation)


def _wanted(span: Span, rows: float, split: SplitSection) -> float:
    """Examples of a span with so many rows; those of its range are good rows of its part already."""
    if span.last >= 0:
        return float(span.last - span.first)
    return max(0.0, rows * _share(span, split) - span.first)


def _rows(spans: Sequence[Span]) -> dict[int, int] | None:
    """Rows of each span by number; None where a file does not tell."""
    if not spans or any(span.kind not in ("row_groups", "sorted") for span in spans):
        return None
    try:
        paths = dict.fromkeys(span.path for span in spans if span.kind == "row_groups")
        groups = {path: row_groups(path, lambda _: None).rows for path in paths}
    except DataError:
        return None
    return {
        span.number: span.stop - span.start
        if span.kind == "sorted"
        else sum(groups[span.path][span.start : span.stop])
        for span in spans
    }


def _examples_per_byte(spans: Sequence[Span]) -> float | None:
    """From the first lines of the first plain text file."""
    plain = next((span.path for span in spans if span.kind == "bytes" and os.path.isfile(span.path)), None)
    if plain is None:
        return None
    with open(plain, "rb") as file:
        sample = file.read(SAMPLE_BYTES)
    end = sample.rfind(b"\n") + 1
    return sample.count(b"\n") / end if end else None
