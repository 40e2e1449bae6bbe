"""The section of a job file on the run itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .section import Seconds, Section


class RunSection(Section):
    """Who this run is and where its folder lies."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        default="job",
        description="Names the run's folder; NAME-2, NAME-3, ... where that is taken. The default of a job"
        " file is its own name.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=1, description="Of the first weights, the first rows, the shuffles and the drawn groups."
    )
    deterministic: bool = Field(
        default=False,
        description="The same bits from the same job, every time. It needs one trainer with one worker, one"
        ' reader, and sync.mode = "fixed" or sync.algorithm = "none".',
    )
    directory: str = Field(
        default="runs", description="Where runs have their folders, relative to the working directory."
    )
    node_timeout_seconds: Seconds = Field(
        default=15.0, description="A node that is silent for so long is declared dead."
    )
    start_timeout_seconds: Seconds = Field(
        default=60.0, description="How long nodes are waited for until all are there."
    )
