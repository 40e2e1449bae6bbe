"""Whole jobs over several embedding nodes: who keeps what, who said so, and what a run that goes on keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from shadowsync.nodes.coordinator.input import planning
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.report.tables.placement import PlanRecord, read_table_plan
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.deterministic import deterministic, digests
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import other_plan, tampered_plan
from shadowsync.tests.support.jobs.resumed import check_trained_once, going_on, interrupted
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings

UNEQUAL: dict[str, dict[str, Any]] = {
    "tables": {"C1": {"rows": 40_000}, "C2": {"rows": 3, "optimizer": "adagrad"}},
    "embedding": {"nodes": 3},
    "sync": {"algorithm": "none", "nodes": 0},
}


@pytest.fixture(autouse=True)
def whole_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is enough for a sample on a machine that does nothing else."""
    monkeypatch.setattr(planning, "SAMPLE_SECONDS", 60.0)


def plan_of(run: RunFolder) -> PlanRecord:
    """What the run's folder says of its tables."""
    return present(read_table_plan(run.folder))


def places(record: PlanRecord) -> dict[str, list[tuple[int, int, str]]]:
    """Which rows each node was given, by table."""
    return {t.name: [(p.start, p.stop, p.node) for p in t.pieces] for t in record.tables}


def test_the_nodes_keep_and_do_what_the_plan_says(cluster: ClusterMaker) -> None:
    # So that each example's rows are looked up, and not those of a batch once.
    run = finished(cluster, {**UNEQUAL, "trainer": {"exact_rows": False}})
    record, report = plan_of(run), run.report
    assert record.how == "measured"
    assert record.sampled_examples > 5000
    folder, manifest = open_checkpoint(run.folder, verify=True)
    saved = SavedTables(folder, manifest)
    for name, pieces in places(record).items():
        assert [(start, stop, f"embedding-{node}") for start, stop, node in saved.places(name)] == pieces
    placed = present(report.placement)
    assert [node.model_dump(exclude={"looked_up_rows", "cpu_seconds"}) for node in placed.nodes] == [
        node.model_dump() for node in record.nodes
    ]
    # Each example has a row of each of the 26 tables, and the last model was scored on nothing more.
    looked_up = [node.looked_up_rows or 0 for node in placed.nodes]
    assert sum(looked_up) >= 26 * EXAMPLES
    assert min(looked_up) > 0.5 * sum(looked_up) / 3
    assert all((node.cpu_seconds or 0) > 0 for node in placed.nodes)
    assert "## Tables: by measured cost" in (run.folder / "report.md").read_text("utf-8")


@pytest.mark.parametrize("role", ["embedding", "trainer"])
def test_a_plan_that_came_changed_stops_the_job(cluster: ClusterMaker, role: str) -> None:
    own = cluster(UNEQUAL, faults=(tampered_plan(role),))
    own.start_coordinator()
    own.join(role)
    assert own.wait() != 0
    text = own.coordinator.text()
    assert f"{role}-0: the coordinator's plan of the tables cannot be used: rows " in text
    assert "are on no node; use one version of shadowsync on all nodes" in text


@pytest.mark.parametrize(("role", "what"), [("embedding", "it has"), ("trainer", "its plan is")])
def test_a_node_with_another_plan_stops_the_job(cluster: ClusterMaker, role: str, what: str) -> None:
    own = cluster({**UNEQUAL, "trainer": {"count": 1}}, faults=(other_plan(role),))
    own.start()
    assert own.wait() != 0
    assert re.search(rf"{role}-\d splits the tables differently: {what} ", own.coordinator.text())
    assert own.run.batches() == 0


@pytest.mark.matrix
def test_a_run_that_goes_on_keeps_the_split_of_its_checkpoint(cluster: ClusterMaker) -> None:
    settings = {**UNEQUAL, "data": {"epochs": 2}, "trainer": {"batch": 256}}
    first = interrupted(cluster, settings, 40)
    by_rows = {"embedding": {"nodes": 3, "placement": "rows"}}
    kept = finished(cluster, going_on(settings, first, by_rows))
    assert plan_of(kept).how == "kept"
    assert places(plan_of(kept)) == places(plan_of(first))
    check_trained_once([first, kept], 2, EXAMPLES)
    anew = {"embedding": {"nodes": 2}, "data": {"epochs": 3}}
    other = finished(cluster, going_on(settings, kept, anew))
    assert plan_of(other).how == "measured"
    assert len(plan_of(other).nodes) == 2
    check_trained_once([first, kept, other], 3, EXAMPLES)
    # The control: by rows alone it would have been another split.
    rows = finished(cluster, {**settings, **by_rows, "data": {"epochs": 1}})
    assert places(plan_of(rows)) != places(plan_of(first))


@pytest.mark.matrix
def test_deterministic_runs_have_one_plan_and_no_clock_in_it(cluster: ClusterMaker) -> None:
    settings: Settings = {
        "sync": {"algorithm": "none"},
        "embedding": {"nodes": 2},
        "tables": UNEQUAL["tables"],
    }
    runs = [finished(cluster, deterministic(settings, 1, name)) for name in ("first", "second")]
    assert plan_of(runs[0]).how == "counted"
    assert plan_of(runs[0]) == plan_of(runs[1])
    assert digests(runs[0]) == digests(runs[1])
