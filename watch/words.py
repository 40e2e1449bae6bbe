"""Figures of a status as short texts, the same wherever they are shown."""

from __future__ import annotations

UNKNOWN = "–"
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def count(value: float | None) -> str:
    """With thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 4) -> str:
    """With so many digits after the point."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return UNKNOWN
    for unit, factor in _SIZES:
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.0f} {unit}" if scaled >= 10 else f"{scaled:.1f} {unit}"
    return f"{value:.0f} B"


def per_second(value: float | None) -> str:
    """Bytes/s."""
    return UNKNOWN if value is None else f"{size(value)}/s"


def share(value: float | None) -> str:
    """As whole per cent."""
    return UNKNOWN if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """Such as 42 s, 3 min 5 s, 2 h 10 min."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
