"""What a control of the synchronization did in a run, for report.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from .placement import ReportPart

PositiveFloat = Annotated[float, Field(gt=0)]


class ControlDecision(ReportPart):
    """One decision of the controller."""

    seconds: NonNegativeFloat
    gap: PositiveInt
    elastic_rate: NonNegativeFloat | None
    ratio: NonNegativeFloat
    why: str


class Control(ReportPart):
    """What `sync.control` was to keep, and what it reached.

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
        """Whether the bound was kept: in the last window, and in half of all."""
        return self.ratio is not None and self.ratio <= self.bound and 2 * self.windows_within >= self.windows
