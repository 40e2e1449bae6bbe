"""What the sections of a job file share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from .sections import STRICT

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of the sections."""

    model_config = STRICT
