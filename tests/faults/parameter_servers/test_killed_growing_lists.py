"""Nodes of a job with growing tables of lists are killed: shards get every batch, and ids their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.faults.conftest import AnyCluster, replace_embedding_nodes
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import Settings
from shadowsync.tests.support.tables.growing_lists import ITEMS, ROWS, TABLES, job_of, write_log

pytestmark = pytest.mark.matrix

EPOCHS = 2
BATCHES = -(-ROWS // 64)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("lists"))


def settings_of(log: Path, rows: int, **changes: dict[str, object]) -> Settings:
    return job_of(
        log,
        {"kind": "growing", "rows": rows},
        run={"node_timeout_seconds": 2.0},
        trainer={"count": 2},
        embedding={"nodes": 2},
        # With a center there is one model, which is scored and saved.
        sync={"algorithm": "easgd", "nodes": 1},
        **changes,
    )


def require_whole(own: AnyCluster, log: Path) -> Report:
    """Every shard has every batch; the saved model scores as the job did."""
    report = own.ended_whole(distinct=EPOCHS * ROWS)
    assert set(report.ledger.shard_applied.values()) == {EPOCHS * BATCHES}
    scored = evaluate_run(own.run.folder.resolve(), [str(log / "eval.parquet")])
    assert scored["ne"] == pytest.approx(own.run.ne, rel=1e-5)
    return report


@pytest.mark.parametrize("rows", [20_000, ITEMS // 2], ids=["a row for each id", "rows that ids share"])
def test_another_embedding_node_gets_every_batch(in_process: ClusterMaker, log: Path, rows: int) -> None:
    own, slowed = slowed_at(20, in_process, settings_of(log, rows))
    replace_embedding_nodes(own)
    slowed.release()
    report = require_whole(own, log)
    assert report.examples.replayed > 0, "the control: something was lost"
    _require_rows(own, report, rows)


def test_it_goes_on_from_the_rows_of_a_checkpoint(in_process: ClusterMaker, log: Path) -> None:
    slowed = Slowed(60)
    settings = settings_of(log, 20_000, checkpoint={"every_examples": 2_000})
    own = in_process(settings, faults=(slowed,)).start()
    wait_until(lambda: (own.run.folder / "checkpoint").exists(), "a checkpoint is written")
    replace_embedding_nodes(own)
    slowed.release()
    report = require_whole(own, log)
    joined = next(event.what for event in report.events if event.node == "embedding-2")
    assert "with the rows of a checkpoint" in joined
    _require_rows(own, report, 20_000)


def test_a_dead_trainer_takes_no_row_with_it(in_process: ClusterMaker, log: Path) -> None:
    own, slowed = slowed_at(20, in_process, settings_of(log, 20_000))
    own.nodes["trainer"][0].kill()
    slowed.release()
    report = require_whole(own, log)
    _require_rows(own, report, 20_000)


def _require_rows(own: AnyCluster, report: Report, rows: int) -> None:
    """Each id has one row, unless there are fewer rows than ids; the rows are trained."""
    of_tables = {table.name: table.rows for table in report.growing_tables}
    model = SavedModel.open(own.run.folder.resolve())
    for name in TABLES:
        assert of_tables[name] == model.tables[name].rows
        assert of_tables[name] == ITEMS if rows > ITEMS else 0 < of_tables[name] <= rows
        assert np.abs(model.tables[name].weights).max() > 0.05
