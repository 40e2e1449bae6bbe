"""A run that starts from another one's checkpoint, also when tables were added."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

Settings = dict[str, dict[str, Any]]
# Nodes that come when the job has been refused wait no longer than this.
SOON = {"start_timeout_seconds": 15.0}
OLD_TABLES = 20


def job(tables: int, prefix: str = "C", **changes: dict[str, Any]) -> Settings:
    """A deterministic job of the first so many categorical columns of the log, under names that begin with
    `prefix`."""
    columns: dict[str, Any] = {"label": "label", **{f"I{n}": "dense" for n in range(1, 14)}}
    for n in range(1, tables + 1):
        columns[f"{prefix}{n}"] = {"kind": "categorical", "source": f"C{n}"}
    settings: Settings = {
        "data": {"columns": columns},
        "sync": {"algorithm": "none"},
        "trainer": {"count": 1},
        **changes,
    }
    return {**settings, "run": {"deterministic": True, **changes.get("run", {})}}


@pytest.fixture(scope="module")
def old(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has trained one epoch; not to be changed."""
    return shared_run(tmp_path_factory.mktemp("old"), click_log, job(OLD_TABLES))


def test_it_begins_where_the_other_ended_and_says_what_is_fresh(
    cluster: ClusterMaker, old: RunFolder
) -> None:
    warm = finished(cluster, job(26, start={"checkpoint": str(old.folder)}))
    scratch = finished(cluster, job(26))
    first, control = (run.report.curves.ne[0][1] for run in (warm, scratch))
    assert first < control - 0.05
    report = warm.report
    # It is a run of its own: everything is trained again, and nothing was restored to the ledger.
    assert report.examples.distinct == EXAMPLES
    assert (report.resumed_from, report.restored_examples) == (None, 0)
    reported = [event.what for event in report.events]
    assert any("tables that" in what and "C21, C22, C23, C24, C25, C26" in what for what in reported), (
        reported
    )
    # What belongs to the columns that both have is taken: of the first layer of "top" the pairs of these.
    part = "top.0.weight (39.2% of it)"
    assert any("dense parameters that" in what and part in what for what in reported), reported
    assert not [event.what for event in scratch.report.events]


@pytest.mark.matrix
def test_tables_alone(cluster: ClusterMaker, old: RunFolder) -> None:
    start = {"checkpoint": str(old.folder), "dense": "none"}
    warm = finished(cluster, job(OLD_TABLES, start=start))
    reported = [event.what for event in warm.report.events]
    assert any("dense parameters that" in what and "bottom" in what for what in reported), reported
    assert not any("tables that" in what for what in reported)


def test_what_does_not_fit_is_refused_before_training(cluster: ClusterMaker, old: RunFolder) -> None:
    start = {"checkpoint": str(old.folder)}
    other = {"embedding_dim": 8, "bottom": [24], "top": [24]}
    for changed, said in (
        (job(OLD_TABLES, start=start, run=SOON, model={"embedding_dim": 4, "bottom": [32]}), "C1"),
        (job(26, start=start | {"dense": "all"}, run=SOON), "another model"),
        (
            job(OLD_TABLES, "X", start=start, run=SOON, model=other),
            "another model: none of its weights and tables are in this job",
        ),
    ):
        own = cluster(changed).start()
        assert own.wait() == 3, own.coordinator.text()
        assert said in own.coordinator.text()
        assert own.run.batches() == 0
    own = cluster(job(OLD_TABLES, start=start | {"which": "best"}))
    assert own.start_coordinator().wait() == 3
    assert "no best checkpoint was kept" in own.coordinator.text()


def test_a_damaged_checkpoint_is_refused_before_any_node_starts(
    cluster: ClusterMaker, old: RunFolder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(old.folder, tmp_path / "damaged"))
    path = next(folder.glob("checkpoint/dense-*"))
    whole = path.read_bytes()
    for damaged, said in ((whole[:-4], "its manifest states"), (whole[:-4] + b"\1\2\3\4", "was altered")):
        path.write_bytes(damaged)
        own = cluster(job(OLD_TABLES, start={"checkpoint": str(folder)}))
        assert own.start_coordinator().wait() == 3
        assert said in own.coordinator.text()
