"""Rates of examples in text that users write."""

from __future__ import annotations

import re
from typing import Final

from ..errors import JobFileError

_UNITS: Final = {"": 1.0, "K": 1e3, "M": 1e6}


def parse_rate(text: str, option: str = "--target") -> float:
    """Parse examples per second, such as "1M/s"; raises JobFileError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kKmM]?)(?:/s)?", text.strip())
    rate = float(match[1]) * _UNITS[match[2].upper()] if match is not None else 0.0
    if rate <= 0.0:
        raise JobFileError(
            f"{option}: {text!r} given", remedy="write examples per second, such as 1M/s or 250k/s"
        )
    return rate
