"""Figures as text, with one convention of units; rates as users write them.

Everything that users read follows it:

- Sizes are in SI units: 1 kB is 1,000 bytes, 1 MB 1,000 kB, 1 GB 1,000 MB; three significant digits.
- Counts have commas between thousands. On the axes of pictures they have SI prefixes: 25 k, 1.5 M.
- Durations are in ms, s, min and h; below a minute they have at most three significant digits.
- Every function of these takes None for a figure that was not measured, and returns `missing` for it.

`watch/page/static/words.js` follows the same convention on the web page. Written by hand: humanize has
neither three significant digits nor a text for figures that were not measured.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import JobFileError

MISSING: Final = "–"
_SIZE_UNITS: Final = ("kB", "MB", "GB", "TB")
_RATE_UNITS: Final = {"": 1.0, "K": 1e3, "M": 1e6}


def count(value: float | None, *, missing: str = MISSING) -> str:
    """Format a whole number, such as 1,005,120."""
    return missing if value is None else f"{value:,.0f}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun, such as 1 message or 1,200 batches."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def number(value: float | None, digits: int = 4, *, missing: str = MISSING) -> str:
    return missing if value is None else f"{value:,.{digits}f}"


def amount(value: float | None, *, missing: str = MISSING) -> str:
    """Format a number of any magnitude with about four significant digits."""
    if value is None:
        return missing
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def percent(share: float | None, digits: int = 0, *, missing: str = MISSING) -> str:
    """Format a share of 1 as per cent."""
    return missing if share is None else f"{share:.{digits}%}"


def data_size(size_bytes: float | None, *, missing: str = MISSING) -> str:
    """Format a number of bytes, such as 999 B or 3.46 GB."""
    if size_bytes is None:
        return missing
    if size_bytes < 999.5:
        return f"{size_bytes:.0f} B"
    scaled, unit = size_bytes / 1000, 0
    # A value that rounds to 1000 of a unit is shown as 1.00 of the next.
    while scaled >= 999.5 and unit + 1 < len(_SIZE_UNITS):
        scaled, unit = scaled / 1000, unit + 1
    decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:,.{decimals}f} {_SIZE_UNITS[unit]}"


def data_rate(bytes_per_second: float | None, *, missing: str = MISSING) -> str:
    """Format bytes per second, such as 12.4 MB/s."""
    return missing if bytes_per_second is None else f"{data_size(bytes_per_second)}/s"


def duration(seconds: float | None, *, missing: str = MISSING) -> str:
    """Format a duration, such as 31.2 ms, 42.5 s or 2 h 10 min."""
    if seconds is None:
        return missing
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min")) if hours else ((minutes, "min"), (rest, "s"))
    return " ".join(f"{value} {unit}" for value, unit in parts if value)


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8, unlike some paths."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def parse_rate(text: str) -> float:
    """Parse `--target`, examples per second such as "1M/s"; raises JobFileError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kKmM]?)(?:/s)?", text.strip())
    rate = float(match[1]) * _RATE_UNITS[match[2].upper()] if match is not None else 0.0
    if rate <= 0.0:
        raise JobFileError(
            f"--target: {text!r} given", remedy="write examples per second, such as 1M/s or 250k/s"
        )
    return rate
