"""Sizes as people write them."""

from __future__ import annotations

import math
import re
from typing import Final

_UNITS: Final = {
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2.0**10,
    "MIB": 2.0**20,
    "GIB": 2.0**30,
    "TIB": 2.0**40,
}
SIZE_HINT: Final = "write a size and its unit, such as 64GiB or 500GB"


def parse_size(text: str) -> int:
    """Return the bytes of a size with its unit, such as 64GiB, 1.5 TB or 0B.

    Raises ValueError, which says what to write.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} given; {SIZE_HINT}")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not math.isfinite(size):
        raise ValueError(f"{text!r} given; {SIZE_HINT}")
    return int(size)
