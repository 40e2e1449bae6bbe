"""Choice of a link's codec from exchange times.

A slow link is given a smaller codec, a fast one is left lossless (FusionLLM, Tang et al., arXiv 2410.12707,
which chooses the compression of each link by its bandwidth).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from ...pipeline.text.format import duration

# Exchanges by one codec that tell its time: their median, so that a single late one changes nothing.
FEWEST_EXCHANGES: Final = 3
MOST_EXCHANGES: Final = 5
# Part of the wanted time into which a less lossy codec must fit before it is tried.
ROOM_ABOVE: Final = 0.7
# Another codec that is no faster than this part saves nothing: the link's delay is what takes the time.
SAVES_NOTHING: Final = 0.9
# Exchanges for which no less lossy codec is tried after a change; after each attempt in vain twice as many.
PATIENCE_EXCHANGES: Final = 16
LONGEST_PATIENCE_EXCHANGES: Final = 256
# Times as many: for so long what an exchange took by the codec before counts, and attempts in vain do.
KNOWN_PATIENCES: Final = 2
FORGOTTEN_PATIENCES: Final = 4
# No exchange counts as faster: clocks are no finer.
CLOCK_SECONDS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _Left:
    """The previous codec, and why it was left."""

    codec: str
    seconds: float
    exchanges: int


class LinkCodecChooser:
    """Codec chooser of one link, without I/O or clock.

    The codec is the least lossy one by which an exchange ends before the next round is wanted. What an
    exchange by another codec would take follows from its bytes: in proportion, or where the codec before
    this one was measured lately, by the line through both, since a delay does not shrink with the bytes.
    Where none fits it is the smallest, unless that saves nothing. A less lossy codec must fit with some room,
    and is tried again ever more seldom if it proved too slow.

    Args:
        payload_bytes: of one exchange, both ways, by codec, the least lossy first.
        allowed_bytes_per_second: what the link may carry on average; None if all that it can.

    Attributes:
        codec: that of the next exchange.
        exchanges: how many were completed, by codec.
        fits: whether an exchange by `codec` ends before the next round is wanted, as far as is known.
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
        """The link's rate, payloads alone: that of the fastest of the last exchanges."""
        return max(self._rates, default=None)

    def want(self, seconds: float | None) -> None:
        """Set how long a round may last; None while unknown."""
        self._wanted_seconds = seconds

    def exchanged(self, codec: str, payload_bytes: int, seconds: float | None) -> str | None:
        """Record an exchange; return the reason if the codec changes.

        One that was begun by an earlier codec, whose values travelled as float32 in part, or whose `seconds`
        are not known, is only counted.
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

    def _decide(self, wanted: float) -> str | None:
        now, taken = self.codec, median(self._seconds)
        # What is left out of the link's use counts, too, as if the link were slower.
        expected = {name: self._expected(name, taken) for name in self._bytes}
        self.fits = expected[now] <= wanted
        chosen = self._chosen(expected, wanted)
        # Up to a codec that may fit, but not back from one that has saved nothing.
        is_attempt = self._bytes[chosen] > self._bytes[now] and expected[chosen] <= wanted
        if chosen == now or (is_attempt and self._since_change < self._patience):
            return None
        if self._since_change >= FORGOTTEN_PATIENCES * self._patience:
            self._patience = PATIENCE_EXCHANGES
        elif self._left is not None and self._left.codec == chosen and not is_attempt:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE_EXCHANGES)
        self._left = _Left(now, taken, sum(self.exchanges.values()))
        self.codec = chosen
        self._seconds.clear()
        return f"an exchange by {now} takes {duration(taken)}, but a round is due every {duration(wanted)}"

    def _chosen(self, expected: Mapping[str, float], wanted: float) -> str:
        room = ROOM_ABOVE
        for name, seconds in expected.items():
            if name == self.codec:
                room = 1.0
            if seconds <= room * wanted:
                return name
        least = min(expected.values())
        return next(name for name, seconds in expected.items() if least >= SAVES_NOTHING * seconds)

    def _expected(self, name: str, taken: float) -> float:
        """Estimate an exchange's seconds with another codec."""
        own, other = self._bytes[self.codec], self._bytes[name]
        slope = taken / own
        if (left := self._left) is not None and self._since_change < KNOWN_PATIENCES * self._patience:
            between = (taken - left.seconds) / (own - self._bytes[left.codec])
            slope = min(max(between, 0.0), slope)
        seconds = max(taken + slope * (other - own), 0.0)
        return seconds if self._allowed is None else max(seconds, other / self._allowed)
