"""Scores of checkpoints, by a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import fspath
from typing import Any, Final

import numpy as np

from ....pipeline.checkpoint.saved import Location
from ....pipeline.data.span import Span
from ....pipeline.errors import ClusterError
from ....pipeline.metrics.quality import QualitySums
from ....pipeline.metrics.retrieval import RetrievalQuality
from ....pipeline.metrics.top_k import GroupRanking
from ....pipeline.wire.field_checks import values_of
from ...runtime.process import ONE_THREAD, SCORING, exit_status_text, python

log = logging.getLogger(__name__)

REPLY_LIMIT_BYTES: Final = 64 << 20
URGENT: Final = "urgent"


class ScoringDiedError(ClusterError):
    """The process ended before it had replied."""


@dataclass(frozen=True)
class CheckpointScore:
    """The sums of a checkpoint's scores.

    `model` describes its model, with the number of trained examples; `first_bad_row` the first malformed row.
    `ranking` has the figures within groups, of a job that has groups; `retrieval` those over a catalogue, of
    a job that has one; `own_metrics` those of `validation.own`.
    """

    model: str
    examples_trained: int
    bad_rows: int
    sums: QualitySums
    first_bad_row: str = ""
    ranking: GroupRanking | None = None
    retrieval: RetrievalQuality | None = None
    own_metrics: dict[str, float | None] = field(default_factory=dict)


class CheckpointScorer:
    """Score checkpoints in a process that lives from the first one to `close`.

    The process has one compute thread, and ends with this process. It is kept because its start takes
    seconds, most of them to import torch. Used on one loop, for one score at a time.

    Args:
        nice: how much lower the priority of the scores is than that of threads that train.
        trained: spans of the training part, if the job's `RetrievalSettings.needs_training_part`.
        validated: spans of the validation part, if so.
    """

    def __init__(self, nice: int, trained: Sequence[Span] = (), validated: Sequence[Span] = ()) -> None:
        self._nice, self._trained, self._validated = nice, trained, validated
        self._process: Process | None = None
        self._errors: asyncio.Task[str] | None = None

    async def score(self, checkpoint: Location, spans: Sequence[Span]) -> CheckpointScore:
        """Score every example of the spans with the model of a checkpoint.

        `checkpoint` is its folder or URL. If the process dies, another one begins anew, once.

        If this coroutine is cancelled, the process is killed first. Raises ClusterError with the reason if it
        fails; the next score may start another process.
        """
        try:
            return await self._score(checkpoint, spans)
        except ScoringDiedError as died:
            log.warning("%s; another one scores %s", died, fspath(checkpoint))
        return await self._score(checkpoint, spans)

    def _request(self, checkpoint: Location, spans: Sequence[Span]) -> dict[str, Any]:
        """Return what the process is asked."""
        return {
            "checkpoint": fspath(checkpoint),
            "spans": [values_of(span) for span in spans],
            "trained": [values_of(span) for span in self._trained],
            "validated": [values_of(span) for span in self._validated],
            "nice": self._nice,
        }

    async def _score(self, checkpoint: Location, spans: Sequence[Span]) -> CheckpointScore:
        request = self._request(checkpoint, spans)
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            line = await process.stdout.readline()
        except BaseException:
            await self.close()
            raise
        if not line.endswith(b"\n"):
            raise ScoringDiedError(await self._end_text())
        return _score_of(json.loads(line))

    def hurry(self) -> None:
        """Score at the usual priority from here on, the current checkpoint, too."""
        if self._nice and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(f"{URGENT}\n".encode())
        self._nice = 0

    async def close(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
        process, errors = self._process, self._errors
        self._process = self._errors = None
        if process is None or errors is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        await errors
        assert process.stdin is not None
        process.stdin.close()

    async def _started(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self.close()
        try:
            process = await asyncio.create_subprocess_exec(
                *python(SCORING),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
                env=os.environ | ONE_THREAD,
                limit=REPLY_LIMIT_BYTES,
            )
        except OSError as error:
            raise ClusterError(f"the validation process cannot be started ({error})") from error
        assert process.stderr is not None
        self._process, self._errors = process, asyncio.ensure_future(_last_line(process.stderr))
        return process

    async def _end_text(self) -> str:
        """Say how the process ended, with the last line that it wrote."""
        assert self._process is not None
        assert self._errors is not None
        code, last = await self._process.wait(), await self._errors
        return f"the validation process ended with {exit_status_text(code)}" + (f": {last}" if last else "")


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end; return its last line that is not empty."""
    last = b""
    async for line in stream:
        last = line.strip() or last
    return last.decode("utf-8", "replace")


def _score_of(reply: dict[str, Any]) -> CheckpointScore:
    if "error" in reply:
        raise ClusterError(reply["error"])
    return CheckpointScore(
        model=reply["model"],
        examples_trained=reply["examples_trained"],
        bad_rows=reply["bad_rows"],
        sums=QualitySums.from_array(np.array(reply["sums"], dtype=np.float64)),
        first_bad_row=reply["first_bad_row"],
        own_metrics=reply["own"],
        ranking=None if reply["ranking"] is None else GroupRanking(**reply["ranking"]),
        retrieval=None if reply["retrieval"] is None else RetrievalQuality(**reply["retrieval"]),
    )
