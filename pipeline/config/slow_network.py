"""A network that is made slow on purpose: what `--delay` and `--bandwidth` say, in seconds and bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DELAY_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BANDWIDTH_UNITS: Final = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
MAX_DELAY_SECONDS: Final = 10.0
MIN_BYTES_PER_SECOND: Final = 1e3
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z/]*)")


@dataclass(frozen=True)
class SlowNetwork:
    """What is put on the links that are emulated.

    Attributes:
        delay_seconds: one way; a question and its answer take twice as long. 0 puts the emulation in place
            without a delay, so that runs with and without one differ in nothing else.
        bytes_per_second: of each node that listens, in each direction, all its connections together, as
            the network card of a machine of its own would have it; None is no limit.
        every_link: all links of the job, or those of synchronization only.
    """

    delay_seconds: float
    bytes_per_second: float | None
    every_link: bool

    def in_words(self) -> str:
        """For reports and pages."""
        parts = [f"a delay of {self.delay_seconds * 1e3:g} ms one way"]
        if self.bytes_per_second is not None:
            parts.append(f"{self.bytes_per_second * 8 / 1e6:g} Mbit/s for each node that listens, each way")
        where = "all links" if self.every_link else "the links of synchronization"
        return f"{' and '.join(parts)}, on {where}"


def parse_delay(text: str) -> float:
    """Seconds; raises ValueError that says what would do."""
    seconds = _amount(text, DELAY_UNITS, "50ms, 0.2s or 800us")
    if seconds > MAX_DELAY_SECONDS:
        raise ValueError(f"{text!r} given; at most {MAX_DELAY_SECONDS:g}s can be emulated")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Bytes per second; raises ValueError that says what would do."""
    rate = _amount(text, BANDWIDTH_UNITS, "100mbit, 2.5gbit or 800kbit (bits per second)")
    if rate < MIN_BYTES_PER_SECOND:
        raise ValueError(f"{text!r} given; at least 8kbit can be emulated")
    return rate


def _amount(text: str, units: dict[str, float], examples: str) -> float:
    found = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if found is None or found[2].lower() not in units:
        raise ValueError(f"{text!r} given; write a number and its unit: {examples}")
    return float(found[1]) * units[found[2].lower()]
