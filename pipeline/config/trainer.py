"""The section of a job file on how the learning rates change while a job is trained."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT

Examples = Annotated[int, Field(ge=0, lt=2**53)]


class ScheduleSection(BaseModel):
    """A factor on the learning rates, by the examples that all trainers together have trained.

    It grows linearly from 0 to 1 over the first `warmup_examples` (0: at once), and then

    - `constant`: stays 1;
    - `linear`, `cosine`: falls to `final` at `decay_examples`, counted from the beginning, and stays there
      (cosine: Loshchilov and Hutter, arXiv 1608.03983, Equation 5, without restarts);
    - `inverse_sqrt`: is sqrt(warmup_examples / examples) (Vaswani et al., arXiv 1706.03762, Equation 3), and
      never below `final`;
    - `step`: is multiplied by `gamma` after each further `step_examples`, and never below `final`.
    """

    model_config = STRICT

    kind: Annotated[
        Literal["constant", "linear", "cosine", "inverse_sqrt", "step"],
        Field(description="What follows the warm-up."),
    ] = "constant"
    warmup_examples: Annotated[Examples, Field(description="Over how many the factor grows from 0 to 1.")] = 0
    decay_examples: Annotated[
        Examples, Field(description="At how many, from the beginning, linear and cosine are at `final`.")
    ] = 0
    final: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="The least factor after the warm-up.")
    ] = 0.0
    step_examples: Annotated[Examples, Field(description="How many a step of `step` lasts.")] = 0
    gamma: Annotated[
        float, Field(gt=0, le=1, allow_inf_nan=False, description="By what a step of `step` multiplies.")
    ] = 0.5
    tables: Annotated[bool, Field(description="Whether the rates of embedding rows follow it too.")] = True

    @model_validator(mode="after")
    def _consistent(self) -> ScheduleSection:
        where = "trainer.schedule"
        if self.kind in ("linear", "cosine") and self.decay_examples <= self.warmup_examples:
            raise ValueError(
                f"{where}.decay_examples: {self.decay_examples} given; {self.kind} needs the number of "
                f"examples at which it ends, above warmup_examples ({self.warmup_examples})"
            )
        if self.kind == "inverse_sqrt" and not self.warmup_examples:
            raise ValueError(f"{where}.warmup_examples: 0 given; inverse_sqrt needs 1 or more")
        if self.kind == "step" and not self.step_examples:
            raise ValueError(f"{where}.step_examples: 0 given; step needs 1 or more")
        return self

    def factor(self, examples: int) -> float:
        """The factor, from 0 to 1, of a batch whose last example is number `examples` (from 1) of the job."""
        warm = self.warmup_examples
        if examples < warm:
            return max(0, examples) / warm
        if self.kind == "inverse_sqrt":
            return max(self.final, math.sqrt(warm / examples))
        if self.kind == "step":
            return max(self.final, self.gamma ** ((examples - warm) // self.step_examples))
        if self.kind == "constant":
            return 1.0
        part = min(1.0, (examples - warm) / (self.decay_examples - warm))
        left = 1.0 - part if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * part))
        return self.final + (1.0 - self.final) * left
