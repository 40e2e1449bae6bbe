"""Automatic changes of a run's synchronization by `sync.control`, for report.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from ..types import ResultModel

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
