"""Whole jobs in which a column of one id and lists of these ids share a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.increment import merge_exports
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.rows import columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.jobs import resumed
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
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

ClusterMaker = Callable[..., InProcessCluster]
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
    "two trainers": (
        GROWING,
        {"trainer": {"count": 2}, "embedding": {"nodes": 2}, "sync": {"algorithm": "easgd", "nodes": 1}},
    ),
}


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=() if name in ("hashed", "growing", "split by rows") else pytest.mark.matrix)
        for name in VARIANTS
    ],
)
def test_a_saved_model_scores_as_the_job_did(cluster: ClusterMaker, log: Path, variant: str) -> None:
    table, changes = VARIANTS[variant]
    run = resumed.finished(cluster, shared_job(log, table, **changes))
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
    lists: list[list[int]] = [[1, 2], [2, 1], [39], []]
    rows = [{"item": 3, "history": one, "scores": [1.0] * len(one)} for one in lists]
    served = ServedModel(model)
    (scores,) = served.score([columns_of_request({"rows": rows}, served.schema, 9)])
    assert isinstance(scores, Scores)
    wanted = model.predict({name: [row[name] for row in rows] for name in rows[0]})
    np.testing.assert_allclose(scores.probabilities, wanted, rtol=1e-5)
    assert len(set(wanted.tolist())) > 2


def test_a_row_for_each_id_trains_as_a_hashed_table_without_collisions(
    cluster: ClusterMaker, log: Path
) -> None:
    """To the bit, in a deterministic job; the controls count ids longer, and have a table a column."""
    found = {}
    variants: dict[str, dict[str, Any]] = {
        "hashed": {},
        "growing": GROWING,
        "later": GROWING | {"admit_after": 9},
        "apart": {},
    }
    for name, table in variants.items():
        changes: dict[str, Any] = {
            "run": {"name": name, "deterministic": True, "seed": 3},
            "data": {"epochs": 1},
            # First values are those of rows or of ids; these are 0 in both.
            "embedding": {"init_scale": 1e-44, "threads": 2},
        }
        make = job_of if name == "apart" else shared_job
        run = resumed.finished(cluster, make(log, table, **changes))
        report, folder = run.report, run.folder
        assert report.eval is not None
        found[name] = report.eval.ne, values_of(folder)
    assert found["hashed"][0] == found["growing"][0]
    assert same(found["hashed"][1], found["growing"][1])
    assert np.abs(found["growing"][1][-1]).max() > 0.05
    for control in ("later", "apart"):
        assert not same(found["hashed"][1], found[control][1])


@pytest.mark.matrix
def test_a_prepared_folder_trains_as_the_files_do(cluster: ClusterMaker, log: Path, tmp_path: Path) -> None:
    """To the bit, in a deterministic job; a job whose columns do not share is refused."""
    found = []
    for prepared in (False, True):
        settings = shared_job(
            log,
            CROWDED,
            run={"name": f"prepared-{prepared}", "deterministic": True, "seed": 3},
            data={"epochs": 1},
            embedding={"nodes": 2},
        )
        if prepared:
            settings["data"]["prepared"] = str(tmp_path / "folder")
        else:
            tree = {key: dict(section) for key, section in settings.items()}
            tree["model"].pop("bottom")
            prepare_folder(job_of_tree(tree), tmp_path / "folder")
        run = resumed.finished(cluster, settings)
        report, folder = run.report, run.folder
        assert report.eval is not None
        found.append((report.eval.ne, values_of(folder)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])
    settings["data"] |= {"columns": COLUMNS}
    with pytest.raises(JobFileError, match=r"data.columns.history.table is '', in the folder 'item'"):
        cluster(settings | {"run": {"name": "apart"}})


def test_an_interrupted_run_and_the_one_that_goes_on_are_one_run(cluster: ClusterMaker, log: Path) -> None:
    """To the bit, with ids that lose their rows before and after."""
    settings = shared_job(log, CROWDED, run={"deterministic": True, "seed": 3})
    whole = resumed.finished(cluster, settings)
    first = resumed.interrupted(cluster, settings, 40)
    second = resumed.finished(cluster, resumed.going_on(settings, first))
    resumed.check_trained_once([first, second], 2, ROWS)
    wanted = resumed.tensors(whole)
    assert resumed.same(wanted, resumed.tensors(second))
    assert not resumed.same(wanted, resumed.tensors(first)), "the control: it had got elsewhere"
    assert all(table.evicted for run in (first, second) for table in run.report.growing_tables)


def test_an_export_has_one_file_of_the_table_and_an_increment_what_changed(
    cluster: ClusterMaker, log: Path, tmp_path: Path
) -> None:
    settings = shared_job(log, CROWDED)
    first = resumed.interrupted(cluster, settings, 40)
    base, part, whole, merged = (tmp_path / name for name in ("base", "part", "whole", "merged"))
    export_model(SavedModel.open(first.folder), base, "torch-export", "parquet")
    second = resumed.finished(cluster, resumed.going_on(settings, first))
    model = SavedModel.open(second.folder)
    manifest = export_model(model, part, "torch-export", "parquet", since=base)
    export_model(model, whole, "torch-export", "parquet")
    assert [(entry["name"], entry["table"]) for entry in manifest["tables"]] == [
        (name, "item") for name in TABLES
    ]
    assert len({entry["hash_column"] for entry in manifest["tables"]}) == 1
    assert {(entry["changed_rows"] > 0, entry["gone_rows"] > 0) for entry in manifest["tables"]} == {
        (True, True)
    }
    merge_exports([base, part], merged)
    (file,) = (path.name for path in whole.glob("table*"))
    assert {entry["file"] for entry in manifest["tables"]} == {file}
    assert (merged / file).read_bytes() == (whole / file).read_bytes()
    assert (base / file).read_bytes() != (whole / file).read_bytes(), "the control"


def test_rows_of_two_tables_cannot_begin_a_shared_one(cluster: ClusterMaker, log: Path) -> None:
    """With a name of its own the table starts anew, and the rest goes on; the other way round is no loss."""
    quick: dict[str, Any] = {"data": {"epochs": 1}}
    apart = resumed.finished(cluster, job_of(log, {}, **quick)).folder
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
    run = resumed.finished(cluster, named)
    report, shared = run.report, run.folder
    assert any("tables that" in event.what and "goods" in event.what for event in report.events)
    back = job_of(log, {}, **quick, start={"checkpoint": str(shared)}, run={"name": "back"})
    report = resumed.finished(cluster, back).report
    assert any("tables that" in event.what and "history" in event.what for event in report.events)
