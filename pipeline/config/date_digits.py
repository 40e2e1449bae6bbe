"""Digits that may be a date, such as 20240101, and not seconds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

SURELY_SECONDS: Final = (100_000_000, 1_900_000_000)
"""Seconds of 1973 to 2030; no usual way to write a date has digits in this range."""

SMALL: Final = 10_000_000
"""Below this are seconds of a log that begins at 0, of up to four months, and other counts."""

DAYS: Final = {"days": (7_305, 32_873), "excel": (32_874, 58_441)}
"""Numbers of the days of 1990 to 2059 in each format, first and end."""

_LAST: Final = 10_000_000_000
_YEAR_10000: Final = 253_402_300_800
_FORMATS: Final[dict[int, tuple[str, ...]]] = {
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y", "%y%m%d%H"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S"),
    14: ("%Y%m%d%H%M%S",),
}
_FEW: Final[dict[int, tuple[str, ...]]] = {4: ("%Y",), 6: ("%Y%m", "%y%m%d"), 7: ("%Y%j",)}
_CLOCK_TIMES: Final = 20
"""Of so many numbers of a count, over more than an hour, one is no time of day."""
_HOUR: Final = 1_00_00

_WIDTHS: Final = {"Y": 4, "y": 2, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "j": 3}


def formats_of_digits(value: float | str) -> tuple[str, ...]:
    """Return the formats that read a number that is not clearly in seconds.

    There is none for seconds since 1970: below SMALL, within SURELY_SECONDS, or no date. Text is digits.
    Some numbers that are no seconds have no format either, see `may_be_seconds`.
    """
    number = float(value)
    digits = value if isinstance(value, str) else str(int(number))
    padded = isinstance(value, str) and value.startswith("0")
    plain = number.is_integer() and digits.isascii() and digits.isdigit()
    counts = number < SMALL or SURELY_SECONDS[0] <= number < SURELY_SECONDS[1]
    if not plain or (counts and not padded):
        return ()
    formats = [form for form in _FORMATS.get(len(digits), ()) if _reads(digits, form)]
    for unit, ticks in (("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        if SURELY_SECONDS[0] <= number / ticks < SURELY_SECONDS[1]:
            formats.append(unit)
    if formats and number < _YEAR_10000:
        formats.append("s")
    return tuple(formats)


def formats_of_few_digits(numbers: Sequence[float], *, of_calendar: bool) -> tuple[str, ...]:
    """Return the formats of numbers that are all dates of few digits, or days.

    The digits are 4, 6 or 7, the numbers different, and "s" is among the formats. There is none unless all
    have them. Of times without a date, such as 235959, it is "s" only, and from so many on that a count would
    have others among them. If their hour or day is asked for (`of_calendar`) no numbers are a count: those
    that would all be seconds near 1970 have "s", and "days" or "excel" where they may be days of our years.
    The order of a count is right without.
    """
    formats = _formats_of_dates(numbers)
    if not of_calendar or not any(numbers) or max(map(abs, numbers)) >= SURELY_SECONDS[0]:
        return formats
    days = [name for name, (low, end) in DAYS.items() if low <= min(numbers) and max(numbers) < end]
    return (*formats[:-1], *days, "s")


def _formats_of_dates(numbers: Sequence[float]) -> tuple[str, ...]:
    if not numbers or not all(number.is_integer() and number >= 0 for number in numbers):
        return ()
    digits = [str(int(number)) for number in numbers]
    widths = {len(value) for value in digits}
    formats = [form for form in _FEW.get(min(widths), ()) if all(_reads(value, form) for value in digits)]
    spread = len(numbers) >= _CLOCK_TIMES and max(numbers) - min(numbers) > _HOUR
    clock = spread and all(map(_is_clock, map(int, numbers)))
    return (*formats, "s") if formats or clock else ()


def _is_clock(number: int) -> bool:
    return number < 240_000 and number // 100 % 100 < 60 and number % 100 < 60


def may_be_seconds(number: float) -> bool:
    """Return whether a number is clearly in seconds since 1970, or counts something."""
    return number < _LAST and not formats_of_digits(number)


def digits_width(time_format: str) -> int:
    """Return how many digits a format has.

    It is 0 for one with anything else, or of any width.
    """
    parts = time_format.split("%")
    if parts[0] or not all(part in _WIDTHS for part in parts[1:]):
        return 0
    return sum(_WIDTHS[part] for part in parts[1:])


def _reads(digits: str, time_format: str) -> bool:
    try:
        date = datetime.strptime(digits, time_format)
    except ValueError:
        return False
    # %d takes one digit where two are not a day.
    return date.strftime(time_format) == digits and 1900 <= date.year < 2100
