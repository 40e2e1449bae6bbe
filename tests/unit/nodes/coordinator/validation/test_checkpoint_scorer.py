"""The process that scores checkpoints dies: another one scores the checkpoint, once."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from shadowsync.nodes.coordinator.validation import scoring
from shadowsync.nodes.coordinator.validation.scoring import CheckpointScore, CheckpointScorer
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.metrics.quality import QualitySums

REPLY = {
    "model": "the center",
    "examples_trained": 7,
    "bad_rows": 0,
    "first_bad_row": "",
    "sums": QualitySums().to_array().tolist(),
    "ranking": None,
    "retrieval": None,
    "own": {},
}
# It says in a file that it began to score, and is killed if it is one of the first.
SCRIPT = """
import os, signal, sys
sys.stdin.readline()
with open(sys.argv[1], "a+") as began:
    began.write("x")
    began.flush()
    if began.tell() <= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
print(sys.argv[3], flush=True)
sys.stdin.read()
"""


def _scored(
    folder: Path, patch: pytest.MonkeyPatch, dead: int, reply: str = json.dumps(REPLY)
) -> tuple[CheckpointScore | str, int]:
    """The score, or why there is none, and how many processes began one."""
    began = folder / "began"
    command = [sys.executable, "-c", SCRIPT, str(began), str(dead), reply]
    patch.setattr(scoring, "python", lambda _: command)

    async def score() -> CheckpointScore | str:
        scorer = CheckpointScorer(nice=0)
        try:
            return await scorer.score(folder, [])
        except ClusterError as error:
            return str(error)
        finally:
            await scorer.close()

    found = asyncio.run(score())
    return found, len(began.read_text())


def test_another_process_scores_for_one_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, began = _scored(tmp_path, monkeypatch, dead=1)
    assert isinstance(found, CheckpointScore), found
    assert (found.examples_trained, began) == (7, 2)


def test_a_second_death_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, began = _scored(tmp_path, monkeypatch, dead=3)
    assert found == "the validation process ended with killed by SIGKILL"
    assert began == 2


def test_what_cannot_be_scored_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = json.dumps({"error": "no such file"})
    assert _scored(tmp_path, monkeypatch, dead=0, reply=reply) == ("no such file", 1)
