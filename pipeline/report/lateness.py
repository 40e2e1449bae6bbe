"""Trainers that the others wait for, and those whose work reaches the model late: which, and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from ..text.format import count, duration
from .merged_work import merged_work

WAITED_SECONDS: Final = "waited_seconds/"
"""Before a trainer's name: the count of a trainer's rounds that waited for that one."""

LONG_SECONDS: Final = 30.0
"""Of less time nothing is said; the report has the figures."""

LATE_SHARE: Final = 1 / 10
"""Of the time: a trainer that is late for so long is named. Undisturbed ones were for 4% at most, on a busy
machine."""

TIMES_OTHERS: Final = 4
"""Late for so many times as long as the others, by their median. In a round somebody is always the last."""

LOOK: Final = "look at its machine or link"


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late one trainer was.

    `seconds` is for how long rounds waited for it, or, if a center merges, for how long its work was late.
    Then it was in `merges`, and missed `missed_merges`.
    """

    seconds: float
    merges: int = 0
    missed_merges: int = 0

    def since(self, before: Lateness | None) -> Lateness:
        """Return what was added since `before`."""
        if before is None:
            return self
        return Lateness(
            seconds=max(0.0, self.seconds - before.seconds),
            merges=self.merges - before.merges,
            missed_merges=self.missed_merges - before.missed_merges,
        )

    def words(self, over_seconds: float) -> str:
        """Say it of a trainer that was late during so many seconds."""
        late, of = duration(self.seconds), duration(over_seconds)
        possible = self.merges + self.missed_merges
        if not possible:
            return f"rounds waited for it for {late} of {of}; {LOOK}"
        return (
            f"its work reaches the model late: it was in {count(self.merges)} of {count(possible)} merges,"
            f" and late for {late} of {of}; {LOOK}"
        )


def lateness_of(counts: Mapping[str, Any]) -> dict[str, Lateness]:
    """Return the lateness of each trainer by the metrics of one node: a sync node, or another trainer."""
    merged = {
        name: Lateness(seconds=work.late_seconds, merges=work.merges, missed_merges=work.missed_merges)
        for name, work in merged_work(counts).items()
    }
    return merged or {
        key.removeprefix(WAITED_SECONDS): Lateness(seconds=float(value))
        for key, value in counts.items()
        if key.startswith(WAITED_SECONDS)
    }


def latest_of(nodes: Mapping[str, Mapping[str, Lateness]]) -> dict[str, Lateness]:
    """Return each trainer's lateness at the node that it kept waiting longest."""
    latest: dict[str, Lateness] = {}
    for of_trainers in nodes.values():
        for name, lateness in of_trainers.items():
            if name not in latest or lateness.seconds > latest[name].seconds:
                latest[name] = lateness
    return latest


def late_trainers(lateness: Mapping[str, Lateness], over_seconds: float) -> dict[str, Lateness]:
    """Return those that were late for LATE_SHARE of the time, and TIMES_OTHERS as long as the others.

    Empty if the time is less than LONG_SECONDS.
    """
    late = {}
    for name, trainer in lateness.items() if over_seconds >= LONG_SECONDS else ():
        others = [other.seconds for key, other in lateness.items() if key != name]
        if others and trainer.seconds > max(LATE_SHARE * over_seconds, TIMES_OTHERS * median(others)):
            late[name] = trainer
    return late
