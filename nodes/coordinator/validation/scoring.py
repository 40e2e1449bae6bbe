"""Validation of checkpoints: scored by a process, the best chosen without I/O."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ....pipeline.config.sections import ValidationSection
from ....pipeline.data.spans import Span
from ....pipeline.errors import ClusterError
from ....pipeline.metrics import QualitySums
from ....pipeline.wire.field_checks import values_of
from ...runtime.process import ONE_THREAD, SCORING, exit_status_text, python

# Lower than training's, and yet it gets a share where training takes the whole machine.
NICE = 5
ANSWER_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class CheckpointScore:
    """The sums of a checkpoint's scores; `model` names its model, after how many examples."""

    model: str
    examples_trained: int
    bad_rows: int
    sums: QualitySums


async def score_checkpoint(checkpoint: Path, spans: Sequence[Span]) -> CheckpointScore:
    """Score every example of the spans with the model in a checkpoint's folder.

    The process is spawned, has one thread of computation and a lower priority, and ends with this one. If
    this coroutine is cancelled, it is killed first. Raises ClusterError if it cannot tell, with its reason.
    """
    process = await _start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    question = {
        "checkpoint": str(checkpoint),
        "spans": [values_of(span) for span in spans],
        "nice": NICE,
    }
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        answer, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process.stdin.close()
    if code != 0:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ClusterError(
            f"the validation process ended with {exit_status_text(code)}" + (f": {last}" if last else "")
        )
    return _score_of(answer)


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *python(SCORING),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=os.environ | ONE_THREAD,
            limit=ANSWER_LIMIT_BYTES,
        )
    except OSError as error:
        raise ClusterError(f"the validation process cannot be started ({error})") from error


def _score_of(answer: bytes) -> CheckpointScore:
    """Parse the last printed line: a user's own model may print, too."""
    try:
        reply = json.loads(answer.strip().rpartition(b"\n")[2])
        return CheckpointScore(
            model=str(reply["model"]),
            examples_trained=int(reply["examples_trained"]),
            bad_rows=int(reply["bad_rows"]),
            sums=QualitySums.from_array(np.array(reply["sums"], dtype=np.float64)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"the validation process answered {answer[-80:]!r}, which is not a score"
        ) from error


@dataclass(frozen=True, slots=True)
class Scored:
    """The metric of a checkpoint, with its trained examples and seconds since the start."""

    examples: int
    seconds: float
    value: float


@dataclass
class ValidationState:
    """Validation as a state machine: scores in, verdicts out.

    A score is the best if it is better than the best so far by `min_delta`.
    """

    settings: ValidationSection
    points: list[Scored] = field(default_factory=list)
    best: Scored | None = None
    without_improvement: int = 0
    failed: int = 0

    def improves(self, value: float) -> bool:
        """Return whether a checkpoint of this value would be the best so far.

        Changes nothing.
        """
        return self.best is None or self._better(value, self.best.value)

    def add(self, scored: Scored) -> bool:
        """Add the score of a checkpoint, kept if it improves.

        Return whether it is the best so far.
        """
        best = self.improves(scored.value)
        self.points.append(scored)
        self.without_improvement = 0 if best else self.without_improvement + 1
        self.best = scored if best else self.best
        return best

    @property
    def exhausted(self) -> bool:
        """Whether training should end: `patience` validations in a row were no improvement."""
        return 0 < self.settings.patience <= self.without_improvement

    def _better(self, value: float, than: float) -> bool:
        gain = value - than if self.settings.metric == "auc" else than - value
        return gain > self.settings.min_delta
