"""Counting what goes through the sockets of one link of synchronization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Traffic:
    """Bytes of messages, headers included. Written by the link's thread; any thread may read them.

    `up` and `down` are those of rounds alone, and `*_float32` what the values among them take as float32.
    """

    sent: int = 0
    received: int = 0
    up: int = 0
    up_float32: int = 0
    down: int = 0
    down_float32: int = 0

    def went_up(self, message_bytes: int, elements: int) -> None:
        """Counts a message with so many elements, to the center or to the trainer that reduces."""
        self.up += message_bytes
        self.up_float32 += 4 * elements

    def went_down(self, message_bytes: int, elements: int) -> None:
        """Counts a message with so many elements, from there."""
        self.down += message_bytes
        self.down_float32 += 4 * elements

    def metrics(self, link: str) -> dict[str, int]:
        """What the report is made of, for the ways of a link as the job's `codecs` has them."""
        return {
            f"{link}_up_bytes": self.up,
            f"{link}_up_float32_bytes": self.up_float32,
            f"{link}_down_bytes": self.down,
            f"{link}_down_float32_bytes": self.down_float32,
        }


def summed(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers by name."""
    total: Counter[str] = Counter()
    for one in metrics:
        total.update(one)
    return dict(total)
