"""The section of a job file on checkpoints that are taken while training goes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from .sections import STRICT


class CheckpointSection(BaseModel):
    """Checkpoints while training goes on; one is always written at the end.

    Training never waits for a disk. Pushes and lookups of an embedding node wait while its rows are copied in
    memory, 35 to 70 ms for each 100 MB of them as measured; where the memory for that copy is not there, no
    checkpoint is taken, and the report says so.

    With both keys set, whichever is due first counts.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="A checkpoint after every so many trained examples, over all trainers. 0: none.",
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="A checkpoint after every so many seconds of training. 0: none."
    )
