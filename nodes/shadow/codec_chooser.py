"""Choice of a link's codec from exchange times.

A slow link gets a smaller codec; a fast one stays lossless. FusionLLM (Tang et al., arXiv 2410.12707) also
chooses the compression of each link by its bandwidth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from ...pipeline.text.format import duration
from .schedule import CLOCK_SECONDS

# Exchanges whose median is the time of a codec, so that a single late one has no effect.
FEWEST_EXCHANGES: Final = 3
MOST_EXCHANGES: Final = 5
# Fraction of the wanted time into which a less lossy codec must fit to be tried.
ROOM_ABOVE: Final = 0.7
# A codec that needs more than this fraction of another's time saves nothing: the link's delay dominates.
SAVES_NOTHING: Final = 0.9
# Exchanges after a change before a less lossy codec is tried; doubled after each failed attempt.
PATIENCE_EXCHANGES: Final = 16
LONGEST_PATIENCE_EXCHANGES: Final = 256
# In units of the patience: how long the previous codec's time, and failed attempts, are remembered.
KNOWN_PATIENCES: Final = 2
FORGOTTEN_PATIENCES: Final = 4


@dataclass(frozen=True, slots=True)
class _Left:
    """The previous codec, and why it was left."""

    codec: str
    seconds: float
    exchanges: int


class LinkCodecChooser:
    """Codec chooser of one link, without I/O or clock.

    The chooser takes the least lossy codec whose exchange ends before the next round is wanted. The time with
    another codec is estimated from its bytes: in proportion, or, if the previous codec was measured recently,
    by the line through both, since a delay does not shrink with the bytes. If no codec fits, it chooses the
    smallest, unless that saves nothing. A less lossy codec must fit with some room to spare, and is tried
    less and less often if it proves too slow.

    Args:
        payload_bytes: bytes of one exchange, both ways, by codec, the least lossy first.
        allowed_bytes_per_second: the link's allowed average rate; None for no limit.

    Attributes:
        codec: the codec of the next exchange.
        exchanges: number of completed exchanges, by codec.
        fits: whether an exchange with `codec` is known or expected to end before the next round is wanted.
    """

    def __init__(
        self, payload_bytes: Mapping[str, int], allowed_bytes_per_second: float | None = None
    ) -> None:
        self._bytes = dict(payload_bytes)
        self._allowed = allowed_bytes_per_second
        self.codec = next(iter(self._bytes))
        self.exchanges = dict.fromkeys(self._bytes, 0)
        self.fits = True
        self._wanted_seconds: float | None = None
        self._seconds: deque[float] = deque(maxlen=MOST_EXCHANGES)
        self._rates: deque[float] = deque(maxlen=MOST_EXCHANGES)
        self._left: _Left | None = None
        self._patience = PATIENCE_EXCHANGES

    @property
    def bytes_per_second(self) -> float | None:
        """The link's payload rate, from the fastest of the last exchanges."""
        return max(self._rates, default=None)

    def want(self, seconds: float | None) -> None:
        """Set how long a round may last; None while unknown."""
        self._wanted_seconds = seconds

    def exchanged(self, codec: str, payload_bytes: int, seconds: float | None) -> str | None:
        """Record an exchange; return the reason if the codec changes.

        With unknown `seconds`, the exchange is only counted. If it began with an earlier codec, or was sent
        partly as float32, its rate is kept, but its time decides nothing.
        """
        self.exchanges[codec] += 1
        if seconds is None:
            return None
        self._rates.append(payload_bytes / max(seconds, CLOCK_SECONDS))
        if codec != self.codec or payload_bytes != self._bytes[codec]:
            return None
        self._seconds.append(seconds)
        if len(self._seconds) < FEWEST_EXCHANGES or self._wanted_seconds is None:
            return None
        return self._decide(self._wanted_seconds)

    @property
    def _since_change(self) -> float:
        """Exchanges since the codec was changed last."""
        return sum(self.exchanges.values()) - self._left.exchanges if self._left is not None else math.inf

    def _decide(self, due_seconds: float) -> str | None:
        now, taken = self.codec, median(self._seconds)
        # Waits for the allowed rate count as well, as if the link were slower.
        expected = {name: self._expected(name, taken) for name in self._bytes}
        self.fits = expected[now] <= due_seconds
        chosen = self._chosen(expected, due_seconds)
        # Trying a larger codec that may fit is an attempt; dropping one that saved nothing is not.
        is_attempt = self._bytes[chosen] > self._bytes[now] and expected[chosen] <= due_seconds
        if chosen == now or (is_attempt and self._since_change < self._patience):
            return None
        if self._since_change >= FORGOTTEN_PATIENCES * self._patience:
            self._patience = PATIENCE_EXCHANGES
        elif self._left is not None and self._left.codec == chosen and not is_attempt:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE_EXCHANGES)
        self._left = _Left(now, taken, sum(self.exchanges.values()))
        self.codec = chosen
        self._seconds.clear()
        return (
            f"an exchange by {now} takes {duration(taken)}, but a round is due every {duration(due_seconds)}"
        )

    def _chosen(self, expected: Mapping[str, float], due_seconds: float) -> str:
        room = ROOM_ABOVE
        for name, seconds in expected.items():
            if name == self.codec:
                room = 1.0
            if seconds <= room * due_seconds:
                return name
        least = min(expected.values())
        return next(name for name, seconds in expected.items() if least >= SAVES_NOTHING * seconds)

    def _expected(self, name: str, taken: float) -> float:
        """Estimate an exchange's seconds with another codec."""
        chosen_bytes, other_bytes = self._bytes[self.codec], self._bytes[name]
        slope = taken / chosen_bytes
        if (left := self._left) is not None and self._since_change < KNOWN_PATIENCES * self._patience:
            between = (taken - left.seconds) / (chosen_bytes - self._bytes[left.codec])
            slope = min(max(between, 0.0), slope)
        seconds = max(taken + slope * (other_bytes - chosen_bytes), 0.0)
        return seconds if self._allowed is None else max(seconds, other_bytes / self._allowed)
