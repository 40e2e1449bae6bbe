"""Parts of times, such as the hour in UTC, as rows of a table."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...config.columns import TIME_PARTS, TimePart
from ...types import Float64Array, IndexArray, Mask

_FIRST_SECOND: Final = -62_135_596_800.0
_LAST_SECOND: Final = 253_402_300_799.0
_DAY_SECONDS: Final = 86_400


def out_of_years(times: Float64Array) -> Mask:
    """Return bool [n]: which times are NaN or not in years 1 to 9999."""
    return ~((times >= _FIRST_SECOND) & (times < _LAST_SECOND + 1))


def rows_of_time_part(times: Float64Array, part: TimePart) -> IndexArray:
    """Return int64 [n], the row of each time's part.

    `times` are seconds since 1970, in UTC, in the years 1 to 9999. NaN is a missing time, which has the last
    row.
    """
    missing = np.isnan(times)
    seconds = np.floor(np.where(missing, 0.0, times)).astype(np.int64)
    if part == "hour":
        rows = seconds // 3600 % 24
    elif part == "weekday":
        # 1970 began on a Thursday.
        rows = (seconds // _DAY_SECONDS + 3) % 7
    else:
        days = (seconds // _DAY_SECONDS).astype("datetime64[D]")
        months = days.astype("datetime64[M]")
        rows = (days - months).astype(np.int64) if part == "day" else months.astype(np.int64) % 12
    rows[missing] = len(TIME_PARTS[part])
    return rows
