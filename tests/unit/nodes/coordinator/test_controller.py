"""When a job that is through is no success."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.outcome import FinalModel
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ExitCode
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id


@pytest.mark.parametrize("trained", [0, 1])
@run_by(asyncio.run)
async def test_a_job_of_bad_batches_alone_fails_also_where_the_span_is_read_last(
    tmp_path: Path, trained: int
) -> None:
    """Where a reader keeps one batch at a time, the trainers are through with all before it says so."""
    job = Job.model_validate({"data": {"format": "criteo_tsv", "path": ["nowhere.tsv"]}, "run": {"seed": 1}})
    ledger = LedgerState([Span(0, "nowhere.tsv", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
    store = LedgerWriter(LedgerStore(tmp_path / "ledger.sqlite"))
    state = JobState(job, tmp_path, ledger, TablePlacement.by_rows(job))
    c = CoordinatorServer(NodeSettings(job=job), state, store)
    try:
        ledger.grant("reader-0")
        for number in range(trained):
            ledger.acknowledge("trainer-0", batch_id(number), 10)
        for number in range(trained, 3):
            left_out = ledger.leave_out("trainer-0", batch_id(number), 10, "its loss is not finite")
            state.training.bad_batches.add(left_out, ledger.queue.path_of)
        ledger.span_read(0, 0, batches=3, examples=30, bad_rows=0)
        controller = JobController(c, [], [], lambda: None)
        controller._model = FinalModel(ModelOrigin.REPLICAS, "none", 1, needs_peers=False)
        state.start_members()
        await asyncio.wait_for(controller._train(), 60.0)
        stop = state.lifecycle.stop
        assert (stop is None) is bool(trained)
        if stop is not None:
            assert stop.exit_code is ExitCode.USAGE
            assert stop.text.startswith("nothing was trained: each of the 3 batches of all trainers")
            assert "nowhere.tsv" in stop.text
    finally:
        await c.close()
        await store.close()
