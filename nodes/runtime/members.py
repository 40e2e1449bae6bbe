"""Which trainers synchronize with each other: a state machine without I/O, owned by the coordinator.

It is the one authority on that, so that a group is re-formed by generation: rounds of two generations never
meet, whatever order the news of a death takes.

Counting what goes through the sockets of one link of synchronization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...pipeline.wire.control_orders import GroupView


class SyncGroup:
    """Events in, the new view out; None where nothing changes."""

    def __init__(self) -> None:
        self.view = GroupView(0, ())

    def form(self, members: Iterable[int]) -> GroupView:
        """A new generation of exactly these."""
        self.view = GroupView(self.view.generation + 1, tuple(sorted(members)))
        return self.view

    def lose(self, index: int) -> GroupView | None:
        """A member died or left."""
        if index not in self.view.members:
            return None
        return self.form(member for member in self.view.members if member != index)

    def late(self, generation: int, index: int, reported_by: int) -> GroupView | None:
        """A member did not keep up with a round of `generation`. Reports about an older generation, and
        those of trainers that were put out themselves, are answered by what happened since."""
        view = self.view
        if generation != view.generation or reported_by not in view.members or reported_by == index:
            return None
        return self.lose(index)

    def admit(self, index: int) -> GroupView | None:
        """A trainer that was put out is there again."""
        if index in self.view.members:
            return None
        return self.form((*self.view.members, index))


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
