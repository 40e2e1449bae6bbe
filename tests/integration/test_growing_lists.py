"""Whole jobs with growing tables of columns that have lists of ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.rows import columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.tests.support.evaluate_run import evaluate_run
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.runs import JobMaker, Settings

ClusterMaker = Callable[..., InProcessCluster]

ITEMS, ROWS, EVAL_ROWS = 40, 4000, 1000
LIST = {"kind": "multi_hot", "source": "history", "max_ids": 5}
COLUMNS: dict[str, Any] = {
    "clicked": "label",
    "item": "categorical",
    "history": {**LIST, "pooling": "none"},
    "sums": LIST,
    "means": {**LIST, "pooling": "mean"},
    "weighted": {**LIST, "weights": "scores", "pooling": "mean"},
}
TABLES = [name for name in COLUMNS if name != "clicked"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose label says whether most of the weight of a list is on low items."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(1)
    for name, count in (("train", ROWS), ("eval", EVAL_ROWS)):
        history = [rng.choice(ITEMS, rng.integers(0, 6), replace=False) for _ in range(count)]
        scores = [rng.integers(1, 9, len(own)) for own in history]
        low = [weights[own < ITEMS // 2].sum() for own, weights in zip(history, scores, strict=True)]
        clicked = [2 * part > weights.sum() for part, weights in zip(low, scores, strict=True)]
        columns = {
            "clicked": np.array(clicked, np.int8),
            "item": rng.integers(0, ITEMS, count),
            "history": pa.array(history, pa.list_(pa.int64())),
            "scores": pa.array(scores, pa.list_(pa.float32())),
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=1000)
    return folder


def job_of(log: Path, table: Mapping[str, Any], **changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    base: dict[str, dict[str, Any]] = {
        "data": {
            "format": "parquet",
            "path": str(log / "train.parquet"),
            "eval_path": str(log / "eval.parquet"),
            "columns": COLUMNS,
            "epochs": 2,
        },
        "model": {"name": "din", "attention": {"history": "item"}, "table_rows": 20_000, "bottom": None},
        "trainer": {"count": 1, "batch": 64, "optimizer": "adam", "lr": 0.01},
        "embedding": {"nodes": 1, "lr": 0.1, "optimizer": "adagrad"},
        "sync": {"algorithm": "none", "nodes": 0},
        "tables": {name: dict(table) for name in TABLES} if table else {},
    }
    return {name: base.get(name, {}) | dict(changes.get(name, {})) for name in base | changes}


def finished(cluster: ClusterMaker, settings: Settings) -> tuple[Report, Path]:
    own = cluster(settings).start()
    assert own.wait(90.0) == 0, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    return report, own.run.folder.resolve()


def values_of(folder: Path) -> list[np.ndarray]:
    """The parameters of the dense part, and every item's vector in each table."""
    model = SavedModel.open(folder)
    dense = [parameter.numpy() for parameter in model.dense.parameters()]
    return dense + [model.tables[name].lookup_ids(range(ITEMS)).numpy() for name in TABLES]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.matrix)])
def test_a_row_for_each_id_trains_as_a_hashed_table_without_collisions(
    cluster: ClusterMaker, log: Path, kind: str
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
            run={"name": f"{name}-{kind}", "deterministic": True, "seed": 3},
            trainer={"worker_kind": kind},
            # First values are those of rows or of ids; these are 0 in both.
            embedding={"init_scale": 1e-44, "threads": 2},
        )
        report, folder = finished(cluster, settings)
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
    report, folder = finished(cluster, settings)
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


def test_a_prepared_folder_trains_as_the_files_do(cluster: ClusterMaker, log: Path, tmp_path: Path) -> None:
    """To the bit, in a deterministic job; the control has another seed."""
    found = []
    for name, seed, prepared in (("files", 3, False), ("prepared", 3, True), ("other", 4, True)):
        settings = job_of(
            log,
            {"kind": "growing", "rows": ITEMS // 2},
            run={"name": name, "deterministic": True, "seed": seed},
            embedding={"nodes": 2},
        )
        if prepared:
            settings["data"]["prepared"] = str(tmp_path / "folder")
        else:
            tree = {key: dict(section) for key, section in settings.items()}
            tree["model"].pop("bottom")
            prepare_folder(job_of_tree(tree), tmp_path / "folder")
        report, folder = finished(cluster, settings)
        assert report.eval is not None
        assert all(table.evicted for table in report.growing_tables)
        found.append((report.eval.ne, values_of(folder)))
        scored = evaluate_run(folder, [str(log / "eval.parquet")])
        assert scored["ne"] == pytest.approx(report.eval.ne, rel=1e-5)
    files, from_folder, other = found
    assert files[0] == from_folder[0] != other[0]
    assert same(files[1], from_folder[1])
    assert not same(files[1], other[1])


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
