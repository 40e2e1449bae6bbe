"""The adaptations of a run in its synchronization, for report.json.

They are gap, elastic rate, and codecs by link. `sync.control` sets the first two; codecs are chosen where
`codecs.center_up` is "auto".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from ..codecs.choices import CHOOSABLE
from .placement import ReportPart

PREFIX: Final = "codec/"

PositiveFloat = Annotated[float, Field(gt=0)]


class ControlDecision(ReportPart):
    """One decision of the controller."""

    seconds: NonNegativeFloat
    gap: PositiveInt
    elastic_rate: NonNegativeFloat | None
    ratio: NonNegativeFloat
    why: str


class Control(ReportPart):
    """The aims of `sync.control`, and what it reached.

    `ratio` is the replicas' mean distance from their mean, over how far that mean moves in 20 iterations of a
    trainer: the median of the last of `windows` a few samples long, of which `windows_within` were within the
    `bound`; `ratio_lowest` that of the best one. None where no window was complete. `gap` and `elastic_rate`
    are the last ones set. `held_up`: at the end rounds came clearly later than `gap`. `decisions` are some of
    the `decision_count`, in order.
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
        """Whether the bound was kept, at the end and mostly.

        That is, in the last window, and in half of all.
        """
        return self.ratio is not None and self.ratio <= self.bound and 2 * self.windows_within >= self.windows


class LinkChoice(ReportPart):
    """One link: exchanges by codec, and the last codec.

    `bytes_per_second` is that of the fastest of the last exchanges, payloads over the time from its first
    byte to its last; None if none was completed. `fits`: at the end an exchange took no longer than from one
    round to the next, as they were wanted.
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
    """Return a link's counts by heartbeat name."""
    return {
        **{f"{PREFIX}{node}/{name}": count for name, count in exchanges.items()},
        f"{PREFIX}{node}/now": CHOOSABLE.index(codec),
        f"{PREFIX}{node}/bytes_per_second": round(bytes_per_second or 0),
        f"{PREFIX}{node}/late": int(not fits),
    }


def choices_of(trainer: str, counts: Mapping[str, int | float]) -> list[LinkChoice]:
    """Return the links of this trainer, by what it told last."""
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
