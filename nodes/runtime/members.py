"""The group of trainers that synchronize, and counts of what they send.

`SyncGroup` is a state machine without I/O, owned by the coordinator, which alone decides the group. Each
change forms a new generation. Rounds of two generations never meet, in whatever order nodes learn of a death.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...pipeline.wire.control.orders import GroupView


class SyncGroup:
    """The group of trainers: events in, new view out; None without a change."""

    def __init__(self) -> None:
        self.view = GroupView(0, ())

    def form(self, members: Iterable[int]) -> GroupView:
        """Form a new generation of exactly these members."""
        self.view = GroupView(self.view.generation + 1, tuple(sorted(members)))
        return self.view

    def adopt(self, view: GroupView) -> None:
        """Take over the view that another coordinator had formed."""
        self.view = view

    def lose(self, index: int) -> GroupView | None:
        """Remove a member that died or left."""
        if index not in self.view.members:
            return None
        return self.form(member for member in self.view.members if member != index)

    def late(self, generation: int, index: int, reported_by: int) -> GroupView | None:
        """Remove a member that did not keep up with a round of `generation`.

        Changes nothing for a report about an older generation, or by a trainer that was removed itself.
        """
        view = self.view
        if generation != view.generation or reported_by not in view.members or reported_by == index:
            return None
        return self.lose(index)

    def admit(self, index: int) -> GroupView | None:
        """Add a removed trainer that is back."""
        if index in self.view.members:
            return None
        return self.form((*self.view.members, index))


@dataclass
class Traffic:
    """Bytes of messages, headers included.

    Written by the connection's thread; any thread may read. `up` and `down` count rounds alone, and
    `*_float32` the size of their values as float32.
    """

    sent: int = 0
    received: int = 0
    up: int = 0
    up_float32: int = 0
    down: int = 0
    down_float32: int = 0

    def went_up(self, message_bytes: int, elements: int) -> None:
        """Count a message to the center, or to the trainer that reduces."""
        self.up += message_bytes
        self.up_float32 += 4 * elements

    def went_down(self, message_bytes: int, elements: int) -> None:
        """Count a message from the center, or from the trainer that reduces."""
        self.down += message_bytes
        self.down_float32 += 4 * elements

    def metrics(self, link: str) -> dict[str, int]:
        """Return counts for the report, named after a link of the job's `codecs`."""
        return {
            f"{link}_up_bytes": self.up,
            f"{link}_up_float32_bytes": self.up_float32,
            f"{link}_down_bytes": self.down,
            f"{link}_down_float32_bytes": self.down_float32,
        }


def summed(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum numbers by name."""
    total: Counter[str] = Counter()
    for counts in metrics:
        total.update(counts)
    return dict(total)
