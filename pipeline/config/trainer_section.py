"""The section of a job file on the trainers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .section import Positive, Rate, Section
from .trainer import ScheduleSection


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
