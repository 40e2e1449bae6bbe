"""Base class and field types of report.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Point = tuple[Amount, Amount]


class Part(BaseModel):
    """Base of all parts: frozen, no unknown keys, no NaN. None: not measured."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
