"""Whole jobs with lists of ids: in a table of their own each, or in one with the column of one id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.increment import merge_exports
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.table_files import TableFormat
from shadowsync.serving.rows import columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.jobs import resumed
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder, Settings
from shadowsync.tests.support.tables.growing_lists import (
    COLUMNS,
    ITEMS,
    ROWS,
    TABLES,
    job_of,
    same,
    values_of,
    write_log,
)

Make = Callable[..., dict[str, dict[str, Any]]]
SHARED: dict[str, Any] = {
    name: {**column, "table": "item"} if isinstance(column, dict) else column
    for name, column in COLUMNS.items()
}
GROWING = {"kind": "growing", "rows": 1000}
CROWDED = {"kind": "growing", "rows": ITEMS // 2}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("lists"))


def shared_job(log: Path, table: dict[str, Any], **changes: Any) -> dict[str, dict[str, Any]]:
    settings = job_of(log, {}, **changes)
    settings["data"] |= {"columns": SHARED}
    return settings | {"tables": {"item": table} if table else {}}


LAYOUTS = pytest.mark.parametrize("make", [job_of, shared_job], ids=["apart", "shared"])
TWO_TRAINERS: dict[str, Any] = {
    "trainer": {"count": 2, "distinct_rows": True},
    "embedding": {"nodes": 2},
    "sync": {"algorithm": "easgd", "nodes": 1},
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hashed": ({}, {}),
    "growing": (GROWING, {}),
    "split by rows": ({}, {"embedding": {"nodes": 3, "placement": "rows"}}),
    "growing and split": (GROWING, {"embedding": {"nodes": 3, "placement": "measured"}}),
    "pooled by trainers": ({"pooled_by": "trainers"}, {"embedding": {"nodes": 2}}),
    "exact rows ahead": (
        GROWING | {"pooled_by": "trainers"},
        {"embedding": {"nodes": 2}, "trainer": {"lookups_ahead": 8, "workers": 2}},
    ),
    "two trainers": (GROWING, TWO_TRAINERS),
}


def check_scores(model: SavedModel) -> None:
    """What is served is what `predict` gives, and lists tell."""
    lists: list[list[int]] = [[1, 2], [2, 1], [39], []]
    rows = [{"item": 3, "history": one, "scores": [1.0] * len(one)} for one in lists]
    served = ServedModel(model)
    (scores,) = served.score([columns_of_request({"rows": rows}, served.schema, 9)])
    assert isinstance(scores, Scores)
    wanted = model.predict({name: [row[name] for row in rows] for name in rows[0]})
    np.testing.assert_allclose(scores.probabilities, wanted, rtol=1e-5)
    assert len(set(wanted.tolist())) > 2


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=() if name in ("hashed", "growing", "split by rows") else pytest.mark.matrix)
        for name in VARIANTS
    ],
)
def test_a_model_with_a_shared_table_scores_as_the_job_did(
    cluster: ClusterMaker, log: Path, variant: str
) -> None:
    table, changes = VARIANTS[variant]
    run = finished(cluster, shared_job(log, table, **changes))
    report, folder = run.report, run.folder
    assert report.eval is not None
    assert report.eval.ne is not None
    # The labels' rate tells nothing of an example, and has 1.
    assert report.eval.ne < 0.7
    assert evaluate_run(folder, [str(log / "eval.parquet")])["ne"] == pytest.approx(report.eval.ne, rel=1e-5)
    (placed,) = json.loads((folder / "plan.json").read_text("utf-8"))["tables"]
    assert (placed["name"], placed["columns"]) == ("item", TABLES)
    assert len(placed["pieces"]) == changes.get("embedding", {}).get("nodes", 1)
    if "kind" in table:
        assert [(one.name, one.rows) for one in report.growing_tables] == [("item", ITEMS)]
    model = SavedModel.open(folder)
    vectors = [model.tables[name].lookup_ids(range(ITEMS)).numpy() for name in TABLES]
    assert all(np.array_equal(vectors[0], own) for own in vectors[1:])
    check_scores(model)


def test_a_model_half_of_whose_ids_have_no_row_scores_as_the_job_did(
    cluster: ClusterMaker, log: Path
) -> None:
    run = finished(cluster, job_of(log, CROWDED, **TWO_TRAINERS))
    report, folder = run.report, run.folder
    assert report.eval is not None
    assert report.eval.ne is not None
    assert report.eval.ne < 0.9, "the others still tell"
    assert all(table.rows <= ITEMS // 2 and table.evicted for table in report.growing_tables)
    assert evaluate_run(folder, [str(log / "eval.parquet")])["ne"] == pytest.approx(report.eval.ne, rel=1e-5)
    check_scores(SavedModel.open(folder))


def test_a_row_for_each_id_trains_as_a_hashed_table_without_collisions(
    cluster: ClusterMaker, log: Path
) -> None:
    """To the bit, in a deterministic job; the controls count ids longer, and have the other layout."""

    of_hashed: list[list[np.ndarray]] = []

    def run(name: str, make: Make, table: dict[str, Any]) -> tuple[RunFolder, list[np.ndarray]]:
        settings = make(
            log,
            table,
            run={"name": f"{name}-{len(of_hashed)}", "deterministic": True, "seed": 3},
            data={"epochs": 1},
            # First values are those of rows or of ids; these are 0 in both.
            embedding={"init_scale": 1e-44, "threads": 2},
        )
        ended = finished(cluster, settings)
        return ended, values_of(ended.folder)

    for make in (job_of, shared_job):
        (hashed, wanted), (growing, values) = run("hashed", make, {}), run("growing", make, GROWING)
        tables = SavedModel.open(hashed.folder).tables
        assert all(len({tables[one].hash(i) for i in range(ITEMS)}) == ITEMS for one in TABLES)
        assert {one.rows for one in growing.report.growing_tables} == {ITEMS}
        assert hashed.ne == growing.ne
        assert same(wanted, values)
        assert all(np.abs(values).max() > 0.05 for values in values[-len(TABLES) :])
        _, later = run("later", make, GROWING | {"admit_after": 9})
        assert not same(wanted, later)
        of_hashed.append(wanted)
    assert not same(*of_hashed)


@pytest.mark.matrix
@LAYOUTS
def test_a_prepared_folder_trains_as_the_files_do(
    cluster: ClusterMaker, log: Path, tmp_path: Path, make: Make
) -> None:
    """To the bit, in a deterministic job; the control has another seed. Another layout is refused."""
    found, settings = [], {}
    for name, seed, prepared in (("files", 3, False), ("prepared", 3, True), ("other", 4, True)):
        settings = make(
            log,
            CROWDED,
            run={"name": name, "deterministic": True, "seed": seed},
            data={"epochs": 1},
            embedding={"nodes": 2},
        )
        if prepared:
            settings["data"]["prepared"] = str(tmp_path / "folder")
        else:
            tree = {key: dict(section) for key, section in settings.items()}
            tree["model"].pop("bottom")
            prepare_folder(job_of_tree(tree), tmp_path / "folder")
        run = finished(cluster, settings)
        report, folder = run.report, run.folder
        assert report.eval is not None
        assert all(table.evicted for table in report.growing_tables)
        found.append((report.eval.ne, values_of(folder)))
        scored = evaluate_run(folder, [str(log / "eval.parquet")])
        assert scored["ne"] == pytest.approx(report.eval.ne, rel=1e-5)
    files, from_folder, other = found
    assert files[0] == from_folder[0] != other[0]
    assert same(files[1], from_folder[1])
    assert not same(files[1], other[1])
    if make is shared_job:
        settings["data"] |= {"columns": COLUMNS}
        with pytest.raises(JobFileError, match=r"data.columns.history.table is '', in the folder 'item'"):
            cluster(settings | {"run": {"name": "apart"}})


@LAYOUTS
def test_an_interrupted_run_and_the_one_that_goes_on_are_one_run(
    cluster: ClusterMaker, log: Path, make: Make
) -> None:
    """To the bit, with ids that lose their rows before and after."""
    settings = make(log, CROWDED, run={"deterministic": True, "seed": 3})
    whole = finished(cluster, settings)
    first = resumed.interrupted(cluster, settings, 40)
    second = finished(cluster, resumed.going_on(settings, first))
    resumed.check_trained_once([first, second], 2, ROWS)
    wanted = resumed.tensors(whole)
    assert resumed.same(wanted, resumed.tensors(second))
    assert not resumed.same(wanted, resumed.tensors(first)), "the control: it had got elsewhere"
    tables = {"item"} if make is shared_job else set(TABLES)
    for run in (first, second):
        assert {table.name for table in run.report.growing_tables if table.evicted} == tables


@pytest.mark.matrix
def test_a_run_goes_on_with_other_numbers_of_nodes(cluster: ClusterMaker, log: Path) -> None:
    settings = job_of(log, {"kind": "growing"}, embedding={"nodes": 2})
    first = resumed.interrupted(cluster, settings, 40)
    still: Settings = {"embedding": {"nodes": 3, "lr": 1e-9}, "trainer": {"lr": 1e-9}}
    second = finished(cluster, resumed.going_on(settings, first, still))
    resumed.check_trained_once([first, second], 2, ROWS)
    before, after = (SavedModel.open(run.folder) for run in (first, second))
    fresh = SavedModel.open(finished(cluster, job_of(log, {"kind": "growing"}, **still)).folder)
    for name in TABLES:
        rows = [model.tables[name].lookup_ids(range(ITEMS)).numpy() for model in (before, after, fresh)]
        # Every id was trained before, so its row is what it was, wherever it is now.
        np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-5)
        assert np.abs(rows[2] - rows[0]).max() > 0.01, "the control: a run from the start is elsewhere"
    assert [table.rows for table in second.report.growing_tables] == [ITEMS] * len(TABLES)
    scored = evaluate_run(second.folder, [str(log / "eval.parquet")])
    assert scored["ne"] == pytest.approx(second.ne, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "form"), [pytest.param(job_of, "safetensors", marks=pytest.mark.matrix), (shared_job, "parquet")]
)
def test_an_increment_has_the_ids_that_came_and_went(
    cluster: ClusterMaker, log: Path, tmp_path: Path, make: Make, form: TableFormat
) -> None:
    """A shared table is one file, of which each column has an entry."""
    settings = make(log, CROWDED)
    first = resumed.interrupted(cluster, settings, 40)
    base, part, whole, merged = (tmp_path / name for name in ("base", "part", "whole", "merged"))
    export_model(SavedModel.open(first.folder), base, "torch-export", form)
    second = finished(cluster, resumed.going_on(settings, first))
    model = SavedModel.open(second.folder)
    entries = export_model(model, part, "torch-export", form, since=base)["tables"]
    export_model(model, whole, "torch-export", form)
    assert [entry["name"] for entry in entries] == TABLES
    assert all(entry["changed_rows"] > 0 and entry["gone_rows"] > 0 for entry in entries)
    names = {path.name for path in whole.glob("table*")}
    if make is shared_job:
        assert {entry["table"] for entry in entries} == {"item"}
        assert len({entry["hash_column"] for entry in entries}) == 1
        assert {entry["file"] for entry in entries} == names
        assert len(names) == 1
    merge_exports([base, part], merged)
    assert names
    for name in names:
        assert (merged / name).read_bytes() == (whole / name).read_bytes()
        assert (base / name).read_bytes() != (whole / name).read_bytes(), "the control"


def test_rows_of_two_tables_cannot_begin_a_shared_one(cluster: ClusterMaker, log: Path) -> None:
    """With a name of its own the table starts anew, and the rest goes on; the other way round is no loss."""
    quick: dict[str, Any] = {"data": {"epochs": 1}}
    apart = finished(cluster, job_of(log, {}, **quick)).folder
    start = {"start": {"checkpoint": str(apart)}}
    soon = {"run": {"start_timeout_seconds": 15.0, "name": "refused"}}
    own = cluster(shared_job(log, {}, **quick, **start, **soon)).start()
    assert own.wait() == 2
    said = own.coordinator.text()
    assert "tables.item: the columns item, history, sums, means, weighted share a table here" in said
    assert "history had table history" in said
    named = shared_job(log, {}, **quick, **start, run={"name": "named"})
    columns = {
        name: {"kind": "categorical", **(column if isinstance(column, dict) else {}), "table": "goods"}
        for name, column in SHARED.items()
        if name != "clicked"
    }
    named["data"] |= {"columns": {"clicked": "label", **columns}}
    run = finished(cluster, named)
    report, shared = run.report, run.folder
    assert any("tables that" in event.what and "goods" in event.what for event in report.events)
    back = job_of(log, {}, **quick, start={"checkpoint": str(shared)}, run={"name": "back"})
    report = finished(cluster, back).report
    assert any("tables that" in event.what and "history" in event.what for event in report.events)


@pytest.mark.matrix
def test_emulated_machines_train_it_too(job_file: JobMaker, log: Path) -> None:
    """As they do hashed tables without collisions."""
    found = []
    for table in ({}, {"kind": "growing"}, {"kind": "growing", "admit_after": 9}):
        settings = job_of(log, table, embedding={"init_scale": 1e-44}, data={"epochs": 1})
        job = load_job(str(job_file(settings)))
        found.append(run_virtual(job, Timing(step_seconds=0.02, round_cpu_seconds=0.001)))
    assert found[0].examples == ROWS
    assert found[0].ne == found[1].ne
    assert found[0].ne != found[2].ne
