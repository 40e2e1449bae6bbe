"""Whole jobs with tables that grow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.data.hashing import hash_integers, mix_one
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.table import Table
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import Settings

pytestmark = pytest.mark.matrix

EXAMPLES, CURRENT, MOST_ROWS = 30_000, 400, 500


@pytest.fixture(scope="module")
def drifting_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 6,400 users with a taste of their own, CURRENT of them at any time."""
    folder, rng = tmp_path_factory.mktemp("drifting"), np.random.default_rng(1)
    user = np.arange(EXAMPLES) // 5 + rng.integers(0, CURRENT, EXAMPLES)
    taste = rng.choice([-2.5, 2.5], EXAMPLES)
    clicked = rng.random(EXAMPLES) < 1 / (1 + np.exp(-taste[user]))
    table = pa.table({"user": user * 7919, "day": user % 3, "clicked": clicked.astype(np.int8)})
    pq.write_table(table.slice(0, EXAMPLES - 3000), folder / "train.parquet", row_group_size=3000)
    pq.write_table(table.slice(EXAMPLES - 3000), folder / "eval.parquet")
    return folder


def job_of(log: Path, user: Mapping[str, Any], **sections: dict[str, Any]) -> Settings:
    base: dict[str, dict[str, Any]] = {
        "data": {
            "path": str(log / "train.parquet"),
            "eval_path": str(log / "eval.parquet"),
            "columns": {"user": "categorical", "day": "categorical", "clicked": "label"},
            "shuffle_window": 0,
        },
        "model": {"name": "wide_deep", "top": [16], "output_bias": "label_rate"},
        "trainer": {"count": 1, "batch": 100, "lr": 0.02},
        "embedding": {"nodes": 2, "lr": 0.3},
        "tables": {"user": dict(user)},
        "sync": {"algorithm": "none", "nodes": 0},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}


def test_it_beats_a_hashed_table_of_the_same_rows_where_ids_come_and_go(
    cluster: ClusterMaker, drifting_log: Path
) -> None:
    quality, reports = {}, {}
    for name, user in (
        ("growing", {"kind": "growing"}),
        ("hashed", {}),
        ("full", {"kind": "growing", "evict": "never"}),
    ):
        report = finished(cluster, job_of(drifting_log, {"rows": MOST_ROWS, **user})).report
        quality[name], reports[name] = present(present(report.eval).ne), report
    assert quality["growing"] < quality["hashed"] - 0.05
    # Without eviction the last ids have no row, and the report says so.
    assert quality["growing"] < quality["full"] - 0.05
    (growing,), (full,) = reports["growing"].growing_tables, reports["full"].growing_tables
    assert growing.rows > 0.9 * MOST_ROWS
    assert growing.evicted > 4000
    assert growing.refused == 0
    assert not any(text.startswith("Table ") for text in reports["growing"].warnings)
    assert (full.rows, full.evicted) == (MOST_ROWS, 0)
    assert full.refused > 4000
    (warning,) = (text for text in reports["full"].warnings if text.startswith("Table "))
    assert warning.startswith("Table user was full:")
    assert 'tables.user.evict = "least_recent"' in warning
    assert reports["hashed"].growing_tables == []


def test_a_saved_table_scores_as_the_job_did(cluster: ClusterMaker, drifting_log: Path) -> None:
    trainer = {"count": 2, "batch": 100}
    settings = job_of(
        drifting_log,
        {"kind": "growing", "rows": MOST_ROWS, "admit_after": 2},
        trainer=trainer,
        sync={"algorithm": "easgd", "nodes": 1},
    )
    run = finished(cluster, settings)
    report, folder = run.report, run.folder
    scored = evaluate_run(folder, [str(drifting_log / "eval.parquet")])
    assert scored["ne"] == pytest.approx(present(report.eval).ne, rel=1e-5)
    model = SavedModel.open(folder)
    users = pq.read_table(drifting_log / "eval.parquet")["user"].to_numpy()
    table = model.tables["user"]
    assert table.rows == report.growing_tables[0].rows
    with pytest.raises(KeyError, match="-5 has no row"):
        table.hash(-5)
    _check_untrained(scored["untrained_ids"], table, users)
    vectors = table.lookup_ids([-5, *users[:50].tolist()])
    # First values are within the scale; a trained user is not.
    assert vectors[0].abs().max() <= 0.05
    assert vectors[1:].abs().max() > 0.3
    _check_export(model, folder.parent / f"export of {folder.name}", users)


def _check_untrained(counts: Mapping[str, Any], table: Table, users: NDArray[np.int64]) -> None:
    """The counts are of the ids that the table does not find; hashed tables do not know."""
    absent = 0
    for user in users.tolist():
        try:
            table.hash(user)
        except KeyError:
            absent += 1
    assert 0 < absent < len(users)
    assert counts == {"user": {"ids": len(users), "untrained": absent}, "day": None}


def _check_export(model: SavedModel, folder: Path, users: NDArray[np.int64]) -> None:
    """The manifest's rule gives the vectors of ids with and without a row."""
    manifest = export_model(model, folder, "torch-export", "parquet")
    (entry,) = [one for one in manifest["tables"] if one["name"] == "user"]
    table = model.tables["user"]
    read = pq.read_table(folder / entry["file"])
    by_key = dict(zip(read["key"].to_pylist(), read["vector"].to_pylist(), strict=True))
    assert entry["growing"]
    assert len(by_key) == entry["rows"] == table.rows
    seen = set()
    for user in [-5, -6, *users[:20].tolist()]:
        (key,) = hash_integers(table.column, np.array([user])).tolist()
        vector = by_key.get(key)
        seen.add(vector is None)
        if vector is None:
            halves = []
            for pair in range((table.dim + 1) // 2):
                q = (key * 2048 + pair + int(entry["first_key"], 16)) % 2**64
                m = mix_one(q * 0x9E3779B97F4A7C15 % 2**64)
                halves += [m & 0xFFFFFFFF, m >> 32]
            signed = [half - 2**32 if half >= 2**31 else half for half in halves[: table.dim]]
            vector = [np.float32(n >> 8) * np.float32(entry["first_scale"] * 2.0**-23) for n in signed]
        np.testing.assert_array_equal(table.lookup_ids([user]).numpy()[0], np.array(vector, np.float32))
    assert seen == {True, False}
