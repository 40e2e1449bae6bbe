"""Automatic changes of a run's synchronization, for report.json.

`sync.control` changes the gap and the elastic rate. `codecs.center_up = "auto"` changes the codec of each
link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from ..codecs.choices import CHOOSABLE
from ..types import ResultModel

PREFIX: Final = "codec/"

PositiveFloat = Annotated[float, Field(gt=0)]


class ControlDecision(ResultModel):
    """One decision of the controller, `seconds` after the start."""

    seconds: NonNegativeFloat
    gap: PositiveInt
    elastic_rate: NonNegativeFloat | None
    ratio: NonNegativeFloat
    why: str


class Control(ResultModel):
    """The bound of `sync.control`, and the ratios that were reached.

    A sample's ratio is the mean distance of the replicas from their mean, divided by how far that mean moves
    in 20 iterations of a trainer. A window is a few samples; its ratio is their median.

    Attributes:
        bound: the largest wanted ratio.
        windows: number of complete windows.
        windows_within: number of windows within the bound.
        ratio: ratio of the last window; None without a complete one.
        ratio_lowest: ratio of the best window; None without a complete one.
        first_gap, gap: the gap at the start, and the last one set.
        first_elastic_rate, elastic_rate: the elastic rate at the start, and the last one set; None if the
            algorithm does not let it change.
        held_up: whether rounds came clearly later than `gap` at the end.
        decision_count: number of all decisions.
        decisions: some of the decisions, in order.
    """

    bound: PositiveFloat
    windows: NonNegativeInt
    windows_within: NonNegativeInt
    ratio: NonNegativeFloat | None
    ratio_lowest: NonNegativeFloat | None
    first_gap: PositiveInt
    gap: PositiveInt
    first_elastic_rate: NonNegativeFloat | None
    elastic_rate: NonNegativeFloat | None
    held_up: bool
    decision_count: NonNegativeInt
    decisions: list[ControlDecision]

    @property
    def kept(self) -> bool:
        """Whether the last window and at least half of all windows kept the bound."""
        return self.ratio is not None and self.ratio <= self.bound and 2 * self.windows_within >= self.windows


class LinkChoice(ResultModel):
    """One link of a trainer to a sync node.

    Attributes:
        trainer, node: the ends of the link.
        exchanges: number of exchanges by codec.
        codec: the last codec.
        bytes_per_second: payload rate of the fastest recent exchange, from its first byte to its last; None
            if no exchange was completed.
        fits: whether an exchange at the end took no longer than the wanted time between rounds.
    """

    trainer: str
    node: str
    exchanges: dict[str, NonNegativeInt]
    codec: str
    bytes_per_second: NonNegativeInt | None
    fits: bool


def choice_counts(
    node: str, exchanges: Mapping[str, int], codec: str, bytes_per_second: float | None, *, fits: bool
) -> dict[str, int]:
    """Return a link's counts, by their names in heartbeats."""
    return {
        **{f"{PREFIX}{node}/{name}": count for name, count in exchanges.items()},
        f"{PREFIX}{node}/now": CHOOSABLE.index(codec),
        f"{PREFIX}{node}/bytes_per_second": round(bytes_per_second or 0),
        f"{PREFIX}{node}/late": int(not fits),
    }


def choices_of(trainer: str, counts: Mapping[str, int | float]) -> list[LinkChoice]:
    """Return a trainer's links, from its last counts."""
    nodes = sorted({name.split("/")[1] for name in counts if name.startswith(PREFIX)})

    def count_of(node: str, what: str) -> int:
        return int(counts.get(f"{PREFIX}{node}/{what}", 0))

    return [
        LinkChoice(
            trainer=trainer,
            node=node,
            exchanges={name: count for name in CHOOSABLE if (count := count_of(node, name))},
            codec=CHOOSABLE[count_of(node, "now")],
            bytes_per_second=count_of(node, "bytes_per_second") or None,
            fits=not count_of(node, "late"),
        )
        for node in nodes
    ]
