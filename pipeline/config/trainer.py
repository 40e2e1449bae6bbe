"""The section of a job file on how the learning rates change while a job is trained.

The section of a job file on the trainers.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT, Positive, Rate, Section

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


class TrainerSection(Section):
    """The trainers and their Hogwild workers."""

    count: Positive = Field(default=1, description="How many; each has a whole replica of the dense model.")
    workers: Positive = Field(
        default=1, description="Hogwild workers of a trainer, which update its replica without locks."
    )
    worker_kind: Literal["thread", "process"] = Field(
        default="thread",
        description='"process" gives each worker an interpreter of its own over shared memory, for machines'
        " with many cores; it needs the CPU, as on one device all share it either way.",
    )
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=512, description="Examples in a batch of one worker."
    )
    optimizer: Literal["sgd", "adagrad", "adam", "adamw"] = Field(
        default="adagrad", description="Of the dense parameters; its state is one a trainer."
    )
    lr: Rate = Field(default=0.01, description="Learning rate of the dense parameters.")
    weight_decay: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Of the dense parameters: added to the gradient as L2, but decoupled with adamw.",
        ),
    ] = 0.0
    clip_norm: Annotated[
        Rate | None,
        Field(
            description="The largest norm of a batch's dense gradient, all parameters together; the "
            "gradients of embeddings are left as they are."
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(
            description="Of the model's products in training; weights, gradients, optimizer state and "
            'held-out scores are float32 always. "auto" is bfloat16 where the trainer has a processor or GPU '
            "with instructions for it, else float32; the report says which it was. bfloat16 is up to twice "
            "as fast; what it does to quality was measured: docs/performance.md.",
        ),
    ] = "auto"
    device: Annotated[
        str,
        Field(
            pattern=r"^(cpu|auto|cuda(:\d{1,3})?)$",
            description='"cpu", "cuda", "cuda:1" or "auto"; it may differ from trainer to trainer. On a GPU '
            "`run.deterministic` repeats up to rounding only.",
        ),
    ] = "cpu"
    max_bad_batches: Annotated[
        int,
        Field(
            ge=0,
            description="Batches whose loss or gradients are NaN, infinite, or so large that their squares"
            " are, are left out whole and counted; with more of them, over all trainers, the job stops. It"
            " stops below the limit, too, where every batch was such a one.",
        ),
    ] = 10
    schedule: ScheduleSection = ScheduleSection()
    credit: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="Batches that a worker asks for ahead of the one that it trains."
    )
    lookups_ahead: Annotated[int, Field(ge=0, le=64)] = Field(
        default=1,
        description="Batches whose vectors are asked for while an earlier one is computed. 0 waits for each"
        " lookup, and learns from the very last batch, which small data in the order of time repay.",
    )
    distinct_rows: bool = Field(
        default=False,
        description="Ask for each row of a batch once and send one gradient for it, however many examples"
        " have it, for fewer bytes and some more of the trainer's processor time: the same to the bit with"
        " float32 in `codecs.vectors` and `codecs.gradients`. Tables with bags are as without.",
    )
