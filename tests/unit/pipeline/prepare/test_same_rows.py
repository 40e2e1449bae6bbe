"""A job on a prepared folder trains on what a job on the source trains on: each format, split and order."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder
from shadowsync.tests.support.data.prepared import (
    Tree,
    batches_of,
    csv_job,
    csv_lines,
    examples_as_bytes,
    on_folder,
    same_batches,
)

BOTH_PARTS = {"split": {"by": "fraction", "validation": 0.1, "test": 0.2}}
IN_TIME = {"order": "time", "split": {"by": "time", "test": 0.25, "progressive": 0.5}}


@pytest.mark.parametrize("more", [{}, BOTH_PARTS, IN_TIME], ids=["all", "drawn", "time"])
def test_csv_to_the_bit(source: Tree, prepared: tuple[Path, Prepared], more: dict[str, Any]) -> None:
    """Batch by batch with their ids, also where rows are drawn or ordered by time."""
    tree = source | {"data": source["data"] | more}
    job, other = job_of_tree(tree), on_folder(tree, prepared[0])
    want, found = plan_input(job), plan_input(other)
    assert len(want.train) > 3
    for name in ("train", "validation", "test"):
        mine, theirs = getattr(want, name), getattr(found, name)
        assert bool(mine) == bool(theirs)
        assert same_batches(list(batches_of(job, mine)), list(batches_of(other, theirs)))
    assert want.progressive == found.progressive
    # The control: another order of the rows, and another draw, are seen.
    assert not same_batches(list(batches_of(job)), list(batches_of(other, window=0)))
    if more is BOTH_PARTS:
        another = on_folder(tree, prepared[0], split=BOTH_PARTS["split"] | {"seed": 1})
        mine, theirs = (examples_as_bytes(list(batches_of(one))) for one in (job, another))
        assert sorted(mine) != sorted(theirs)


@pytest.mark.parametrize(
    ("data_format", "compression", "growing"),
    [("criteo_tsv", "none", ()), ("parquet", "zst", ()), ("criteo_tsv", "none", ("C3", "C9"))],
)
def test_click_logs_to_the_bit(
    tmp_path: Path, data_format: Any, compression: Any, growing: tuple[str, ...]
) -> None:
    generate_log(
        tmp_path,
        examples=4000,
        eval_examples=500,
        seed=1,
        files=2,
        data_format=data_format,
        compression=compression,
    )
    with_held_out = {"path": str(tmp_path / "train-*"), "eval_path": str(tmp_path / "eval-*")}
    tree: Tree = {
        "data": {"format": data_format, "span_bytes": 1 << 17} | with_held_out,
        "model": {"table_rows": [100 + at for at in range(26)]},
        "tables": {name: {"kind": "growing"} for name in growing},
    }
    folder = tmp_path / "prepared"
    done = prepare_folder(job_of_tree(tree), folder)
    job, other = job_of_tree(tree), on_folder(tree, folder)
    assert same_batches(list(batches_of(job)), list(batches_of(other)))
    want, found = (list(batches_of(one, plan_input(one).test)) for one in (job, other))
    assert sum(map(len, want)) == 500
    assert all(len(batch.keys) == len(growing) for batch in want)
    assert same_batches(want, found)
    assert done.manifest.rows == 4500
    # Another hash of the ids, which the rows of tables stand for here, is seen.
    small = job_of_tree(tree | {"model": {"table_rows": 99}})
    assert not same_batches(want, list(batches_of(small, plan_input(small).test)))


def test_a_compressed_file_becomes_many_spans_of_the_same_examples(tmp_path: Path) -> None:
    """In the order of the file, and the same rows where they are drawn."""
    (tmp_path / "all.csv.gz").write_bytes(gzip.compress(csv_lines(9000, 3, 100).encode()))
    tree = csv_job(tmp_path / "all.csv.gz", **BOTH_PARTS)
    job = job_of_tree(tree)
    done = prepare_folder(job, tmp_path / "prepared")
    other = on_folder(tree, tmp_path / "prepared")
    want, found = plan_input(job), plan_input(other)
    assert len(want.train) == 1
    assert len(found.train) == len(done.manifest.parts) > 3
    for name in ("train", "validation", "test"):
        mine = examples_as_bytes(list(batches_of(job, getattr(want, name), window=0)))
        theirs = examples_as_bytes(list(batches_of(other, getattr(found, name), window=0)))
        assert len(mine) > 500
        assert mine == theirs
        shuffled = examples_as_bytes(list(batches_of(other, getattr(found, name), window=100)))
        assert mine != shuffled
        assert sorted(mine) == sorted(shuffled)


@pytest.mark.parametrize("text", [True, False], ids=["texts", "integers"])
def test_columns_of_parquet(tmp_path: Path, text: bool) -> None:
    """Typed values, lists and nulls; and what class of ids a model saw is known as before."""
    table = pcsv.read_csv(pa.py_buffer(csv_lines(3000).encode()))
    ids = [value.as_py()[1:] or None for value in table["user"]]
    users = pa.array(ids if text else [int(value) if value else None for value in ids])
    tags = pa.array([value.as_py().split("|") if value.as_py() else None for value in table["tags"]])
    table = table.set_column(2, "user", users).set_column(3, "tags", tags)
    pq.write_table(table, tmp_path / "all.parquet", row_group_size=500)
    tree = csv_job(tmp_path / "all.parquet", format="parquet")
    prepare_folder(job_of_tree(tree), tmp_path / "prepared")
    job, other = job_of_tree(tree), on_folder(tree, tmp_path / "prepared")
    assert same_batches(list(batches_of(job)), list(batches_of(other)))
    want = plan_input(job).id_classes
    assert want["user"] == ("text" if text else "integer")
    assert plan_input(other).id_classes == want


def test_spans_without_a_good_row_keep_their_numbers(tmp_path: Path) -> None:
    lines = csv_lines(4000).splitlines(keepends=True)
    lines[1500:3000] = ["not,a,row\n" * 12] * 1500
    (tmp_path / "all.csv").write_text("".join(lines))
    tree = csv_job(tmp_path / "all.csv", max_bad_rows=100_000, max_bad_fraction=1.0)
    job = job_of_tree(tree)
    done = prepare_folder(job, tmp_path / "prepared")
    other = on_folder(tree, tmp_path / "prepared")
    rows = [part.rows for part in done.manifest.parts]
    assert 0 in rows[1:-1]
    assert same_batches(list(batches_of(job)), list(batches_of(other)))


@pytest.mark.data
def test_the_real_criteo_sample(tmp_path: Path) -> None:
    """Criteo's own compressed text, with its missing values, negative counts and drawn parts."""
    real = os.environ.get("SHADOWSYNC_DATA")
    if not real:
        pytest.skip("SHADOWSYNC_DATA does not point to the real data sets")
    path = f"{real}/criteo_first10k.tsv.gz"
    tree: Tree = {"data": {"format": "criteo_tsv", "path": path, "span_bytes": 1 << 18} | BOTH_PARTS}
    job = job_of_tree(tree)
    done = prepare_folder(job, tmp_path / "prepared")
    other = on_folder(tree, tmp_path / "prepared")
    assert done.manifest.rows == 10_000
    assert len(done.manifest.parts) > 3
    want, found = plan_input(job), plan_input(other)
    for name, least in (("train", 6500), ("validation", 900), ("test", 1800)):
        mine = examples_as_bytes(list(batches_of(job, getattr(want, name), window=0)))
        assert len(mine) > least
        assert mine == examples_as_bytes(list(batches_of(other, getattr(found, name), window=0)))


def test_patterns_and_parts_of_times(tmp_path: Path) -> None:
    """Columns that a pattern names, and the hour and weekday of a time, some of them missing."""
    lines = ["y,f_b,f_a,at,user"]
    lines += [
        f"{at % 2},{at % 7},{at % 5},{1_700_000_000 + 4001 * at if at % 11 else ''},u{at % 50}"
        for at in range(3000)
    ]
    (tmp_path / "log.csv").write_text("".join(f"{line}\n" for line in lines))
    columns: Tree = {
        part: {"kind": "categorical", "source": "at", "part": part} for part in ("hour", "weekday")
    }
    tree = csv_job(
        tmp_path / "log.csv", columns={"y": "label", "user": "categorical", "f_*": "dense"} | columns
    )
    prepare_folder(job_of_tree(tree), tmp_path / "out")
    source = list(batches_of(job_of_tree(tree)))
    (tmp_path / "log.csv").unlink()
    prepared = on_folder(tree, tmp_path / "out")
    assert list(prepared.data.columns) == ["y", "user", "f_b", "f_a", "hour", "weekday"]
    assert prepared.column_rows == (300, 25, 8)
    assert {row for batch in source for row in batch.rows[1].tolist()} == set(range(25))
    assert same_batches(source, list(batches_of(prepared)))
