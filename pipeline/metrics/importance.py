"""Figures of the importance of columns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from ..types import ResultModel


class ColumnImportance(ResultModel):
    """How much worse a model is if a column's values are exchanged between rows.

    Attributes:
        ne_increase, auc_decrease: means over `repeats` exchanges; below 0 if it is better without.
        ne_deviation: standard deviation of the increases; None of one.

    Of scores that are no probabilities the figures of NE are None.
    """

    name: str
    ne_increase: float | None
    ne_deviation: NonNegativeFloat | None
    auc_decrease: float
    repeats: Annotated[int, Field(ge=1)]


class Importance(ResultModel):
    """The permutation importance of columns.

    Attributes:
        rows: rows of the sample.
        label: the label that was scored.
        ne, auc: quality on the sample as it is; of scores that are no probabilities NE is None.
        columns: the most important first.
        left_out: columns that there was no time for.
    """

    rows: NonNegativeInt
    label: str
    ne: NonNegativeFloat | None
    auc: NonNegativeFloat
    columns: list[ColumnImportance]
    left_out: list[str] = Field(default=[])
