"""Whole jobs with growing tables of columns that have lists of ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
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
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
from shadowsync.tests.support.jobs.runs import JobMaker, Settings
from shadowsync.tests.support.tables.growing_lists import (
    ITEMS,
    ROWS,
    TABLES,
    job_of,
    same,
    values_of,
    write_log,
)

ClusterMaker = Callable[..., InProcessCluster]

CROWDED = {"kind": "growing", "rows": ITEMS // 2}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("lists"))


@pytest.mark.matrix
def test_a_row_for_each_id_trains_as_a_hashed_table_without_collisions(
    cluster: ClusterMaker, log: Path
) -> None:
    """To the bit, in a deterministic job; the control gives ids their rows later."""
    found = {}
    for name, table in (
        ("hashed", {}),
        ("growing", {"kind": "growing"}),
        ("later", {"kind": "growing", "admit_after": 9}),
    ):
        settings = job_of(
            log,
            table,
            run={"name": name, "deterministic": True, "seed": 3},
            data={"epochs": 1},
            # First values are those of rows or of ids; these are 0 in both.
            embedding={"init_scale": 1e-44, "threads": 2},
        )
        run = resumed.finished(cluster, settings)
        report, folder = run.report, run.folder
        assert report.eval is not None
        found[name] = report.eval.ne, values_of(folder)
        if name == "hashed":
            tables = SavedModel.open(folder).tables
            assert all(len({tables[one].hash(i) for i in range(ITEMS)}) == ITEMS for one in TABLES)
        else:
            assert [table.rows for table in report.growing_tables] == [ITEMS] * len(TABLES)
    assert found["hashed"][0] == found["growing"][0]
    assert same(found["hashed"][1], found["growing"][1])
    assert all(np.abs(values).max() > 0.05 for values in found["growing"][1][-len(TABLES) :])
    assert not same(found["hashed"][1], found["later"][1])


def test_a_saved_model_scores_as_the_job_did(cluster: ClusterMaker, log: Path) -> None:
    settings = job_of(
        log,
        {"kind": "growing", "rows": ITEMS // 2},
        trainer={"count": 2, "distinct_rows": True},
        embedding={"nodes": 2},
        sync={"algorithm": "easgd", "nodes": 1},
    )
    run = resumed.finished(cluster, settings)
    report, folder = run.report, run.folder
    assert report.eval is not None
    assert report.eval.ne is not None
    # Half of the ids have no row, and still the others tell.
    assert report.eval.ne < 0.9
    assert all(table.rows <= ITEMS // 2 for table in report.growing_tables)
    assert all(table.evicted for table in report.growing_tables)
    assert evaluate_run(folder, [str(log / "eval.parquet")])["ne"] == pytest.approx(report.eval.ne, rel=1e-5)
    model = SavedModel.open(folder)
    lists: list[list[int]] = [[1, 2], [2, 1], [39], []]
    rows = [{"item": 3, "history": one, "scores": [1.0] * len(one)} for one in lists]
    served = ServedModel(model)
    (scores,) = served.score([columns_of_request({"rows": rows}, served.schema, 9)])
    assert isinstance(scores, Scores)
    wanted = model.predict({name: [row[name] for row in rows] for name in rows[0]})
    np.testing.assert_allclose(scores.probabilities, wanted, rtol=1e-5)
    assert len(set(wanted.tolist())) > 2


@pytest.mark.matrix
def test_a_prepared_folder_trains_as_the_files_do(cluster: ClusterMaker, log: Path, tmp_path: Path) -> None:
    """To the bit, in a deterministic job; the control has another seed."""
    found = []
    for name, seed, prepared in (("files", 3, False), ("prepared", 3, True), ("other", 4, True)):
        settings = job_of(
            log,
            {"kind": "growing", "rows": ITEMS // 2},
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
        run = resumed.finished(cluster, settings)
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


def test_an_interrupted_run_and_the_one_that_goes_on_are_one_run(cluster: ClusterMaker, log: Path) -> None:
    """To the bit, with ids that lose their rows before and after."""
    settings = job_of(log, CROWDED, run={"deterministic": True, "seed": 3})
    whole = resumed.finished(cluster, settings)
    first = resumed.interrupted(cluster, settings, 40)
    evicted = {table.name: table.evicted for table in first.report.growing_tables}
    second = resumed.finished(cluster, resumed.going_on(settings, first))
    resumed.check_trained_once([first, second], 2, ROWS)
    wanted = resumed.tensors(whole)
    assert resumed.same(wanted, resumed.tensors(second))
    assert not resumed.same(wanted, resumed.tensors(first)), "the control: it had got elsewhere"
    assert set(evicted) == set(TABLES)
    assert all(evicted.values())
    assert all(table.evicted for table in second.report.growing_tables)


@pytest.mark.matrix
def test_a_run_goes_on_with_other_numbers_of_nodes(cluster: ClusterMaker, log: Path) -> None:
    settings = job_of(log, {"kind": "growing"}, embedding={"nodes": 2})
    first = resumed.interrupted(cluster, settings, 40)
    still: Settings = {"embedding": {"nodes": 3, "lr": 1e-9}, "trainer": {"lr": 1e-9}}
    second = resumed.finished(cluster, resumed.going_on(settings, first, still))
    resumed.check_trained_once([first, second], 2, ROWS)
    before, after = (SavedModel.open(run.folder) for run in (first, second))
    fresh = SavedModel.open(resumed.finished(cluster, job_of(log, {"kind": "growing"}, **still)).folder)
    for name in TABLES:
        rows = [model.tables[name].lookup_ids(range(ITEMS)).numpy() for model in (before, after, fresh)]
        # Every id was trained before, so its row is what it was, wherever it is now.
        np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-5)
        assert np.abs(rows[2] - rows[0]).max() > 0.01, "the control: a run from the start is elsewhere"
    assert [table.rows for table in second.report.growing_tables] == [ITEMS] * len(TABLES)
    assert second.report.eval is not None
    scored = evaluate_run(second.folder, [str(log / "eval.parquet")])
    assert scored["ne"] == pytest.approx(second.report.eval.ne, rel=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["parquet", pytest.param("safetensors", marks=pytest.mark.matrix)])
def test_an_increment_has_the_ids_of_lists_that_came_and_went(
    cluster: ClusterMaker, log: Path, tmp_path: Path, form: TableFormat
) -> None:
    settings = job_of(log, CROWDED)
    first = resumed.interrupted(cluster, settings, 40)
    base, part, whole, merged = (tmp_path / name for name in ("base", "part", "whole", "merged"))
    export_model(SavedModel.open(first.folder), base, "torch-export", form)
    second = resumed.finished(cluster, resumed.going_on(settings, first))
    model = SavedModel.open(second.folder)
    manifest = export_model(model, part, "torch-export", form, since=base)
    export_model(model, whole, "torch-export", form)
    assert [entry["name"] for entry in manifest["tables"]] == TABLES
    for entry in manifest["tables"]:
        assert entry["changed_rows"] > 0
        assert entry["gone_rows"] > 0
    merge_exports([base, part], merged)
    names = [path.name for path in whole.glob("table*")]
    assert names
    for name in names:
        assert (merged / name).read_bytes() == (whole / name).read_bytes()
        assert (base / name).read_bytes() != (whole / name).read_bytes(), "the control"


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
