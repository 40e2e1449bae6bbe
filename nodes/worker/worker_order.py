"""What a worker process is started with: one line of JSON on its standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...pipeline.config.job import Job


@dataclass(frozen=True)
class WorkerOrder:
    """The settings of one worker process.

    Attributes:
        job: as the trainer has it.
        trainer: the trainer's name.
        trainer_index: its place among the trainers.
        token: its incarnation.
        index: the worker's place in the trainer.
        folder: the run folder.
        endpoint: where the trainer's end of the pair is.
        descriptor: of the shared memory, inherited.
        plan: of the tables, see `TablePlan.to_body`.
    """

    job: Job
    trainer: str
    trainer_index: int
    token: str
    index: int
    folder: str
    endpoint: str
    descriptor: int
    plan: dict[str, Any]

    def to_line(self) -> bytes:
        """The line, with its end."""
        tree = vars(self) | {"job": self.job.model_dump(mode="json")}
        return json.dumps(tree).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerOrder:
        """Of what `to_line` gave; raises ValueError."""
        tree = json.loads(line)
        return cls(**tree | {"job": Job.model_validate(tree["job"])})
