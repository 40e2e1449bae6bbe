"""The trainers' work in the merges of a center, as sync nodes count it and as the report has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import NonNegativeFloat, NonNegativeInt

from ..types import ResultModel

# Before a trainer's name, the counts of it in a sync node's metrics.
MERGED_EXAMPLES: Final = "merged_examples/"
MERGES_WITH: Final = "merges_with/"
MERGES_WITHOUT: Final = "merges_without/"
LATE_SECONDS: Final = "late_seconds/"
MOST_LATE_SECONDS: Final = "most_late_seconds/"


class MergedWork(ResultModel):
    """The work of one trainer: its examples in the center, and the merges that it was in.

    With several slices these are the counts of the slice that has the least.

    Attributes:
        missed_merges: merges that closed without it while it trained.
        late_seconds, most_late_seconds: by how long its contributions came late, in all and at once: later
            after an answer than twice the usual time.
        unmerged_examples: trained and confirmed examples that no merge has; 0 if it took part to the end, and
            no slice was made again: such a slice has them by the mean of the replicas.
    """

    examples: NonNegativeInt
    merges: NonNegativeInt
    missed_merges: NonNegativeInt = 0
    late_seconds: NonNegativeFloat = 0.0
    most_late_seconds: NonNegativeFloat = 0.0
    unmerged_examples: NonNegativeInt = 0

    @property
    def share(self) -> float | None:
        """Share of the merges that it was in, of those while it trained; None without any."""
        possible = self.merges + self.missed_merges
        return self.merges / possible if possible else None


class Merges(ResultModel):
    """The merges of a center.

    With several slices these are the counts of the slice with the fewest merges.

    Attributes:
        late: how many of the merges closed without a trainer, which was late.
        trainers: by the trainer's name.
    """

    number: NonNegativeInt
    late: NonNegativeInt
    trainers: dict[str, MergedWork]


def merged_counts(
    trainer: str,
    examples: int,
    merges: int,
    *,
    missed_merges: int = 0,
    late_seconds: float = 0.0,
    most_late_seconds: float = 0.0,
) -> dict[str, float]:
    """Return a sync node's counts of one trainer, for its metrics; see `MergedWork`."""
    return {
        MERGED_EXAMPLES + trainer: examples,
        MERGES_WITH + trainer: merges,
        MERGES_WITHOUT + trainer: missed_merges,
        LATE_SECONDS + trainer: late_seconds,
        MOST_LATE_SECONDS + trainer: most_late_seconds,
    }


def merged_work(counts: Mapping[str, Any]) -> dict[str, MergedWork]:
    """Return each trainer's work by a sync node's metrics; empty if it does not merge."""
    return {
        name: MergedWork(
            examples=int(value),
            merges=int(counts.get(MERGES_WITH + name, 0)),
            missed_merges=int(counts.get(MERGES_WITHOUT + name, 0)),
            late_seconds=float(counts.get(LATE_SECONDS + name, 0.0)),
            most_late_seconds=float(counts.get(MOST_LATE_SECONDS + name, 0.0)),
        )
        for key, value in counts.items()
        if key.startswith(MERGED_EXAMPLES) and (name := key.removeprefix(MERGED_EXAMPLES))
    }


def merges_of(nodes: Mapping[str, Mapping[str, Any]], trained_examples: Mapping[str, int]) -> Merges | None:
    """Return the merges by all sync nodes' metrics; None if none merges.

    `trained_examples` are the confirmed ones, by trainer.
    """
    slices = [(counts, work) for counts in nodes.values() if (work := merged_work(counts))]
    if not slices:
        return None
    fewest = min((counts for counts, _ in slices), key=lambda counts: int(counts.get("merges", 0)))
    names = sorted({name for _, work in slices for name in work})
    least = {
        name: min((work[name] for _, work in slices if name in work), key=lambda merged: merged.examples)
        for name in names
    }
    trainers = {
        name: merged.model_copy(
            update={"unmerged_examples": max(0, trained_examples.get(name, 0) - merged.examples)}
        )
        for name, merged in least.items()
    }
    return Merges(
        number=int(fewest.get("merges", 0)), late=int(fewest.get("late_merges", 0)), trainers=trainers
    )
