"""`[trainer]` and `[trainer.schedule]`: trainers, their workers, and the learning rate schedule."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT, Positive, Rate, Section

ScheduleExamples = Annotated[int, Field(ge=0, lt=2**53)]

MOST_LOOKUPS_AHEAD: Final = 64
MOST_CREDIT: Final = 1024


def warmup_factor(examples: int, warmup_examples: int) -> float:
    """Return the progress of a warm-up, from 0 to 1; 1 without a warm-up."""
    return min(1.0, max(0, examples) / warmup_examples) if warmup_examples else 1.0


class ScheduleSection(BaseModel):
    """Learning rate schedule, as a function of trained examples.

    The factor grows linearly from 0 to 1 over the first `warmup_examples` (0: it is 1 at once). After that,
    by `kind`:

    - `constant`: it stays 1;
    - `linear`, `cosine`: it falls to `final` at `decay_examples`, counted from the beginning, and stays there
      (cosine: Loshchilov and Hutter, arXiv 1608.03983, Equation 5, without restarts);
    - `inverse_sqrt`: it is sqrt(warmup_examples / examples) (Vaswani et al., arXiv 1706.03762, Equation 3),
      but never below `final`;
    - `step`: it is multiplied by `gamma` after every further `step_examples`, but never below `final`;
    - `cosine_restarts`: it falls to `final` as a cosine over `step_examples`, and begins again at 1 (the same
      paper, with restarts of equal length);
    - `cyclic`: it falls linearly to `final` over `step_examples`, and rises again over as many, and so on
      (Smith, arXiv 1506.01186, the triangle).

    The one-cycle policy (Smith and Topin, arXiv 1708.07120) is `cosine` with a long warm-up.
    """

    model_config = STRICT

    kind: Annotated[
        Literal["constant", "linear", "cosine", "inverse_sqrt", "step", "cosine_restarts", "cyclic"],
        Field(description="Shape of the schedule after the warm-up."),
    ] = "constant"
    warmup_examples: Annotated[
        ScheduleExamples, Field(description="Number of examples over which the factor grows from 0 to 1.")
    ] = 0
    decay_examples: Annotated[
        ScheduleExamples,
        Field(
            description="linear, cosine: number of examples, from the beginning, at which the factor reaches"
            " `final`."
        ),
    ] = 0
    final: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="Smallest factor after the warm-up.")
    ] = 0.0
    step_examples: Annotated[
        ScheduleExamples,
        Field(
            description="step: number of examples of one step; cosine_restarts: of one fall; cyclic: of a"
            " fall, and of a rise."
        ),
    ] = 0
    gamma: Annotated[
        float,
        Field(gt=0, le=1, allow_inf_nan=False, description="step: multiplier of the factor at each step."),
    ] = 0.5
    tables: Annotated[
        bool, Field(description="Whether the schedule also applies to the rates of embedding rows.")
    ] = True

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
        if self.kind in ("step", "cosine_restarts", "cyclic") and not self.step_examples:
            raise ValueError(f"{where}.step_examples: 0 given; {self.kind} needs 1 or more")
        return self

    def factor(self, examples: int) -> float:
        """Compute the factor, from 0 to 1, for a batch.

        Args:
            examples: number of the batch's last example in the job, counted from 1.
        """
        warmup = self.warmup_examples
        if examples < warmup:
            return warmup_factor(examples, warmup)
        if self.kind == "inverse_sqrt":
            return max(self.final, math.sqrt(warmup / examples))
        if self.kind == "step":
            return max(self.final, self.gamma ** ((examples - warmup) // self.step_examples))
        if self.kind == "constant":
            return 1.0
        if self.kind in ("linear", "cosine"):
            progress = min(1.0, (examples - warmup) / (self.decay_examples - warmup))
        else:
            # From 0 to 1 over a fall, to 2 over the rise after it.
            progress = (examples - warmup) / self.step_examples % (2.0 if self.kind == "cyclic" else 1.0)
        is_straight = self.kind in ("linear", "cyclic")
        left = abs(1.0 - progress) if is_straight else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.final + (1.0 - self.final) * left


class TrainerSection(Section):
    """The trainers and their Hogwild workers."""

    count: Positive = Field(
        default=1, description="Number of trainers; each has a full replica of the dense model."
    )
    workers: Positive = Field(
        default=1, description="Hogwild workers per trainer, which update its replica without locks."
    )
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=512, description="Examples in a batch of one worker."
    )
    optimizer: Literal["sgd", "adagrad", "adam", "adamw"] = Field(
        default="adagrad",
        description="Optimizer of the dense parameters; the workers of a trainer share its state.",
    )
    lr: Rate = Field(default=0.01, description="Learning rate of the dense parameters.")
    weight_decay: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Weight decay of the dense parameters: added to the gradient as L2; decoupled with"
            " adamw.",
        ),
    ] = 0.0
    ema: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Field(
            description="Rate, above 0 and below 1, of an exponential moving average of the dense parameters:"
            " 0.999 is of about the last 1,000 batches of each trainer. Its mean over the trainers is then"
            " validated, scored and exported, and predicts; training goes on with the parameters themselves,"
            " also in a resumed run. Rows of tables are not averaged."
        ),
    ] = None
    clip_norm: Annotated[
        Rate | None,
        Field(
            description="Largest norm of a batch's dense gradient, over all parameters; a larger gradient is"
            " scaled down. Gradients of embeddings are not clipped."
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(
            description="Precision of the model's matrix products in training; weights, gradients, optimizer"
            ' state and held-out scores are always float32. "auto" is bfloat16 if the trainer has a processor'
            " or GPU with instructions for it, otherwise float32; the report says which was used. bfloat16 is"
            " up to twice as fast; its effect on quality was measured, see docs/models.md.",
        ),
    ] = "auto"
    device: Annotated[
        str,
        Field(
            pattern=r"^(cpu|auto|cuda(:\d{1,3})?)$",
            description='Device of the dense model: "cpu", "cuda:1", "cuda", for each trainer another GPU of'
            ' its machine, or "auto", the same where there is a GPU; trainers may differ.'
            " On a GPU `run.deterministic` reproduces results only up to rounding.",
        ),
    ] = "cpu"
    max_bad_batches: Annotated[
        int,
        Field(
            ge=0,
            description="A bad batch is one whose loss or gradients are NaN, infinite, or so large that their"
            " squares are infinite, or whose own loss is no scalar or depends on no parameter. Bad batches"
            " are skipped and counted; if all trainers together have more than this, the job stops. It also"
            " stops if every batch was bad.",
        ),
    ] = 10
    schedule: ScheduleSection = ScheduleSection()
    credit: Annotated[int, Field(ge=1, le=MOST_CREDIT)] | Literal["auto"] = Field(
        default="auto",
        description="Batches of each reader that a worker has at most, with the one that it computes."
        ' "auto": 4, and more if a worker waits for its batches or looks up many ahead.',
    )
    lookups_ahead: Annotated[int, Field(ge=0, le=MOST_LOOKUPS_AHEAD)] | Literal["auto"] = Field(
        default="auto",
        description='Batches whose vectors are requested while an earlier batch is computed. "auto": 1, or 0'
        " of several workers, and as many more as a worker needs to hide the round trip of a lookup behind"
        " its steps. With `exact_rows` rows lack no push of their own trainer, so one trainer with one worker"
        " learns the same at any depth. Pushes of other trainers they lack the longer, the further ahead they"
        " were looked up; with 0 a worker waits for each lookup, which improves quality on small data in the"
        " order of time. At most credit * data.readers - 1 are there to be looked up.",
    )
    consecutive_batches: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1,
        description="Consecutive batches of a reader's input that go to one worker. In a log by time rows"
        " of a user come close together; with 100 or so they are trained one after the other by one worker,"
        " which improves quality on small data. A reader keeps up to as many batches for each worker.",
    )
    exact_rows: bool = Field(
        default=True,
        description="Train each batch on rows with all pushes that its trainer has made until then, also"
        " those that the embedding node had not applied when it answered. A batch that was looked up far"
        " ahead is then as good as one that was not. Each row of a batch is requested once, with its"
        " optimizer state.",
    )
    distinct_rows: bool = Field(
        default=False,
        description="Request each row of a batch once and send one gradient for it, however many examples"
        " contain it. This saves bytes and costs some CPU time of the trainer; with float32 in"
        " `codecs.vectors` and `codecs.gradients` results are the same to the bit. It does not affect tables"
        " with bags, unless these have weights or are sequences.",
    )
