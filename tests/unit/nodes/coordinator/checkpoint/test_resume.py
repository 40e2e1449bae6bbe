"""What a run that goes on says of what it took over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.nodes.coordinator.checkpoint.resume import RestoredRun, require_same_job
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.types import BatchId

LEDGER = SavedLedger(1, {(0, 0): SavedSpan(3, 20, 0)}, {(0, 1): {0: 10}}, {(0, 0): {1: 10}, (0, 1): {2: 10}})


@pytest.mark.parametrize(("early", "again"), [([(0, 1), (1, 2), (1, 3), (1, 4)], 2), ([(0, 1), (1, 2)], 0)])
def test_what_was_left_out_is_not_trained_again(early: list[tuple[int, int]], again: int) -> None:
    """A shard may have a batch of which a trainer that died had pushed, and which another one left out."""
    batches = [BatchId(0, span, number, 1) for span, number in early]
    applied = {"embedding-0": frozenset(batches), "embedding-1": frozenset(batches[:1])}
    manifest = cast("Any", SimpleNamespace(run="before", model="the center", job={}))
    run = RestoredRun(Path("run"), manifest, LEDGER, applied, 0, None)
    said = f"; batches that only some shards had applied are trained again, and applied once: {again}"
    assert (said in run.event()) is bool(again)
    assert ("trained again" in run.event()) is bool(again)


@pytest.mark.parametrize(("kind", "says"), [("process", True), ("thread", False), (None, False)])
def test_workers_that_were_processes_are_threads_now(kind: str | None, says: bool) -> None:
    """A saved job has every key, also one that is gone since."""
    job = {"trainer": {} if kind is None else {"worker_kind": kind}}
    manifest = cast("Any", SimpleNamespace(run="before", model="the center", job=job))
    event = RestoredRun(Path("run"), manifest, LEDGER, {}, 0, None).event()
    assert ("; its workers were processes and are threads now" in event) is says


def test_how_brokers_are_reached_may_change() -> None:
    def job(protocol: str, **data: Any) -> Job:
        section = {
            "format": "criteo_tsv",
            "path": ["kafka://host:1/clicks"],
            "kafka": {"security_protocol": protocol},
        }
        return Job.model_validate({"data": section | data})

    require_same_job(job("ssl", epochs=2), job("plaintext"))
    with pytest.raises(JobFileError, match=r"data\.dense_features is 3 instead of 13"):
        require_same_job(job("ssl", dense_features=3), job("plaintext"))
