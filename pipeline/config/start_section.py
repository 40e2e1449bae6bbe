"""The section of a job file on what a run starts from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT


class StartSection(BaseModel):
    """What a run starts from: first values of its own, or the checkpoint of another run."""

    model_config = STRICT

    checkpoint: str = Field(
        default="",
        description="The folder of a run, or of a checkpoint, to start from, relative to that of the job"
        " file. Empty: from first values.",
    )
    which: Literal["last", "best"] = Field(
        default="last",
        description="Which checkpoint of that run: its last one, or the one that validation kept.",
    )
    dense: Literal["matching", "all", "none"] = Field(
        default="matching",
        description="Which dense parameters are taken: those of the same name and shape, all of them (a run"
        " whose model differs is refused), or none.",
    )
    resume: bool = Field(
        default=False,
        description="Go on with that run itself, as `shadowsync resume` does: its ledger, its optimizer"
        " states and its replicas are taken over, and what it trained is not trained again.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> StartSection:
        if self.resume and not self.checkpoint:
            raise ValueError(
                "start.resume: true given; it needs start.checkpoint, use `shadowsync resume RUN`"
            )
        if self.resume and self.dense != "matching":
            raise ValueError(
                f'start.dense: "{self.dense}" given; a resumed run takes its whole model, leave it out'
            )
        return self
