"""Scores of checkpoints, each by a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....pipeline.data.spans import Span
from ....pipeline.errors import ClusterError
from ....pipeline.metrics.quality import QualitySums
from ....pipeline.wire.field_checks import values_of
from ...runtime.process import ONE_THREAD, SCORING, exit_status_text, python

# Below training's priority, but it gets a share even if training takes the whole machine.
NICE = 5
OUTPUT_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class CheckpointScore:
    """The sums of a checkpoint's scores.

    `model` describes its model, with the number of trained examples.
    """

    model: str
    examples_trained: int
    bad_rows: int
    sums: QualitySums


async def score_checkpoint(checkpoint: Path, spans: Sequence[Span]) -> CheckpointScore:
    """Score every example of the spans with the model in a checkpoint's folder.

    A spawned process with one compute thread and a lower priority does it; it ends with this process. If this
    coroutine is cancelled, that process is killed first. Raises ClusterError with the reason if it fails.
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
        output, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
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
    return _score_of(output)


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *python(SCORING),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=os.environ | ONE_THREAD,
            limit=OUTPUT_LIMIT_BYTES,
        )
    except OSError as error:
        raise ClusterError(f"the validation process cannot be started ({error})") from error


def _score_of(output: bytes) -> CheckpointScore:
    """Parse the last printed line, since a user's own model may print before."""
    try:
        reply = json.loads(output.strip().rpartition(b"\n")[2])
        return CheckpointScore(
            model=str(reply["model"]),
            examples_trained=int(reply["examples_trained"]),
            bad_rows=int(reply["bad_rows"]),
            sums=QualitySums.from_array(np.array(reply["sums"], dtype=np.float64)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"the validation process answered {output[-80:]!r}, which is not a score"
        ) from error
