"""The section of a job file on validation while training goes on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT


class ValidationSection(BaseModel):
    """Validation while training goes on, in a process of its own, of a checkpoint that was just written.

    The checkpoint that is scored is named, and the best one is kept in the run's folder as `best/`. It needs
    validation data: `data.validation_path`, or `data.split.validation`.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Validate after every so many trained examples, over all trainers. 0: never."
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="Validate after every so many seconds of training. 0: never."
    )
    metric: Literal["ne", "auc", "logloss"] = Field(
        default="ne",
        description="What decides which checkpoint is the best: the lowest NE or logloss, the highest AUC.",
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Training ends early, and well, after so many validations in a row that were no"
        " improvement. 0: never.",
    )
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="By how much the metric must be better than the best so far to be an improvement.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ValidationSection:
        if self.patience and not self.wanted:
            raise ValueError(
                f"validation.patience: {self.patience} given; set validation.every_examples or "
                "validation.every_seconds, or nothing is ever validated"
            )
        return self

    @property
    def wanted(self) -> bool:
        """Whether anything is validated while training goes on."""
        return self.every_examples > 0 or self.every_seconds > 0
