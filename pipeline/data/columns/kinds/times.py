"""Times of examples, and the faults of every column of times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ....config.columns import ColumnSection
from ....types import Mask
from ..fields import null_mask
from ..time_values import formats_of, parse_times
from .base import ColumnValues
from .chunk import ColumnChunk


class TimestampValues(ColumnValues):
    """Kind "timestamp": seconds since 1970, or the column's numbers as they are.

    A missing time is NaN. If rows are read in the order of time, such a row is bad.
    """

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        column = chunk.column(name)
        chunk.times = parse_times(column, section.format)
        wrong = np.isnan(chunk.times)
        if chunk.settings.data.order != "time":
            wrong &= ~null_mask(column)
        add_time_faults(chunk, name, section, wrong)

    def description(self, section: ColumnSection) -> str:
        del section
        return "seconds since 1970"


def add_time_faults(chunk: ColumnChunk, name: str, section: ColumnSection, rows: Mask) -> None:
    """Note rows whose values are no times, and say in which format they may be."""
    column, unclear = chunk.column(name), np.zeros_like(rows)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        chunk.fault(name, "not a time in the years 1 to 9999", rows)
        return
    state = f"state the format of the times: {name} = {{ ..., format ="
    if section.format:
        chunk.fault(name, f"not in the format {section.format}", rows, f'{state} "%d/%m/%Y %H:%M" }}')
        return
    formats: tuple[str, ...] = ()
    for row in np.flatnonzero(rows).tolist():
        possible = formats_of(column[row])
        unclear[row] = bool(possible)
        formats = formats or possible
    texts = [f'"{time_format}"' for time_format in formats]
    what = f"not clearly one time: state its format, {' or '.join(texts)}"
    chunk.fault(name, what, unclear, f"{state} {''.join(texts[:1])} }}")
    chunk.fault(name, "not in seconds or ISO 8601", rows & ~unclear, f'{state} "%d/%m/%Y %H:%M" }}')
