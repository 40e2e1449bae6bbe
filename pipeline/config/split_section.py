"""`[data.split]`: how the rows of `data.path` are parted into training, validation and test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT

Part: TypeAlias = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Moment: TypeAlias = str | int | float | None


class SplitSection(BaseModel):
    """Parts of the rows of `data.path`; parts may also be files: `data.validation_path`, `data.eval_path`."""

    model_config = STRICT

    by: Literal["", "fraction", "time"] = Field(
        default="",
        description='"fraction": each row is drawn; "time": the last rows; "": there is no split',
    )
    validation: Part = Field(default=0.0, description="fraction of the rows that training is validated on")
    test: Part = Field(default=0.0, description="fraction of the rows that the model is tested on at the end")
    validation_from: Moment = Field(
        default=None, description="time: validation begins here, as a number or ISO text"
    )
    test_from: Moment = Field(default=None, description="time: the test part begins here")
    progressive: Part = Field(
        default=0.0, description="the last fraction of training: scored before it is trained on"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0, description="fraction: of the draw; not run.seed, so that seeds are compared on one part"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SplitSection:
        moments = (self.validation_from, self.test_from)
        if not self.by and (self.validation or self.test):
            raise ValueError('data.split.by: "" given; name a way, "fraction" or "time"')
        if self.by != "time" and any(moment is not None for moment in moments):
            raise ValueError('data.split: validation_from and test_from need by = "time"')
        if any(moment is not None for moment in moments) and (self.validation or self.test):
            raise ValueError("data.split: give fractions, or the times at which the parts begin, not both")
        if self.by and not (self.validation or self.test or any(moment is not None for moment in moments)):
            raise ValueError(f'data.split.by: "{self.by}" given without parts; give validation or test')
        if self.validation + self.test >= 1:
            raise ValueError(
                f"data.split: validation {self.validation:g} and test {self.test:g} leave nothing to train on"
            )
        first, second = (None if moment is None else seconds_of(moment) for moment in moments)
        if first is not None and second is not None and first > second:
            raise ValueError(
                "data.split: validation_from is after test_from; validation comes before the test"
            )
        return self


def seconds_of(moment: str | int | float) -> float:
    """A moment as seconds since 1970 (text without a zone is UTC) or, of a number, itself.

    Raises ValueError for text that is no ISO 8601 date or time.
    """
    if not isinstance(moment, str):
        return float(moment)
    try:
        at = datetime.fromisoformat(moment)
    except ValueError as error:
        raise ValueError(f"data.split: {moment!r} is no time; write 2026-03-31T12:00 or a number") from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
