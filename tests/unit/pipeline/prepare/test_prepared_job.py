"""A job on a prepared folder: what the folder fills in, what must agree, and what is altered there."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from shadowsync.nodes.coordinator.checkpoint.running import describe_input, input_differences
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.prepared.manifest import (
    MANIFEST_NAME,
    PreparationSettings,
    PreparedManifest,
    read_prepared,
    source_files,
)
from shadowsync.pipeline.data.prepared.part_reader import verify_folder
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job, load_resolved
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder
from shadowsync.tests.support.data.prepared import (
    Tree,
    batches_of,
    csv_job,
    csv_lines,
    on_folder,
    same_batches,
)

Made = tuple[Path, Prepared]


@pytest.fixture
def copy(prepared: Made, tmp_path: Path) -> Path:
    """A folder of one's own to alter."""
    return Path(shutil.copytree(prepared[0], tmp_path / "copy"))


def test_the_folder_fills_in_what_the_job_leaves_out(source: Tree, prepared: Made) -> None:
    short = job_of_tree({"data": {"prepared": str(prepared[0])}, "model": {"embedding_dim": 4}})
    whole = on_folder(source, prepared[0])
    assert short.data.model_copy(update={"span_bytes": 1 << 16}) == whole.data
    assert short.tables == whole.tables
    assert same_batches(list(batches_of(short)), list(batches_of(job_of_tree(source))))


def test_paths_are_those_of_the_job_file_or_of_the_shell(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy.parent / "job.toml").write_text('[data]\nprepared = "copy"\n')
    job = load_job(copy.parent / "job.toml")
    assert job.data.prepared == str(copy)
    monkeypatch.chdir(copy.parent.parent)
    (copy.parent / "job.toml").write_text('[data]\nprepared = "elsewhere"\n')
    name = f"data.prepared={copy.parent.name}/copy"
    assert load_job(copy.parent / "job.toml", [name]).data.prepared == str(copy)
    # A resolved job says all by itself.
    (copy.parent / "job.json").write_text(job.model_dump_json())
    shutil.rmtree(copy)
    assert load_resolved(copy.parent / "job.json") == job


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"table_rows": 301}}, "table user has 301 rows, in the folder 300 rows"),
        ({"tables": {"tags": {"rows": 7}}}, "table tags has 7 rows, in the folder 300 rows"),
        ({"data": {"missing": ["?"]}}, r"data.missing is \['\?'\], in the folder \[''\]"),
        ({"data": {"encoding": "cp1252"}}, "data.encoding is 'cp1252', in the folder 'utf-8'"),
        ({"data": {"format": "tsv"}}, "data.format is 'tsv', in the folder 'csv'"),
        ({"data": {"path": "/other/x-*.csv"}}, r"data.path is /other/x-\*.csv, in the folder .*\*.csv"),
        ({"data": {"eval_path": "/other/*.csv"}}, r"data.eval_path is /other/\*.csv, in the folder none"),
        ({"columns": {"price": {"scale": 3.0}}}, "data.columns.price.scale is 3.0, in the folder 2.0"),
        ({"columns": {"tags": {"max_ids": 9}}}, "data.columns.tags.max_ids is 9, in the folder 3"),
        ({"columns": {"tags": {"keep": "last"}}}, "data.columns.tags.keep is 'last', in the folder None"),
        ({"columns": {"extra": {"kind": "dense"}}}, "column extra is only in the job"),
        ({"columns": {"w": None}}, "column w is only in the folder"),
    ],
)
def test_what_does_not_agree_is_named_before_anything_starts(
    source: Tree, prepared: Made, change: dict[str, Any], words: str
) -> None:
    columns: dict[str, Any] = {
        name: dict(value) if isinstance(value, dict) else {"kind": value}
        for name, value in source["data"]["columns"].items()
    }
    for name, keys in change.get("columns", {}).items():
        if keys is None:
            del columns[name]
        else:
            columns[name] = columns.get(name, {}) | keys
    data = source["data"] | {"prepared": str(prepared[0]), "columns": columns} | change.get("data", {})
    tree = source | {key: value for key, value in change.items() if key != "columns"} | {"data": data}
    with pytest.raises(JobFileError, match=words) as reported:
        job_of_tree(tree)
    assert "--force" in str(reported.value)
    assert str(prepared[0]) in str(reported.value)


def test_the_source_may_lie_elsewhere_or_nowhere(source: Tree, prepared: Made) -> None:
    moved = source["data"] | {"path": "/no/such/place/*.csv"}
    job = on_folder(source | {"data": moved}, prepared[0])
    assert same_batches(list(batches_of(job)), list(batches_of(job_of_tree(source))))


def test_pooling_is_not_the_folders_business(source: Tree, prepared: Made) -> None:
    columns = source["data"]["columns"] | {"tags": {**source["data"]["columns"]["tags"], "pooling": "sum"}}
    job = on_folder(source, prepared[0], columns=columns)
    assert [column.pooling for column in job.embedded_columns] == ["", "sum"]


def test_a_part_of_the_job_may_take_the_place_of_the_folders_files(prepared: Made) -> None:
    """A split of the job's own, where the folder has such a part too, is meant."""
    short = {"data": {"prepared": str(prepared[0]), "split": {"by": "fraction", "test": 0.2}}}
    plan = plan_input(job_of_tree(short))
    assert plan.test
    assert len(plan.test) == len(plan.train)


def _with_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads((folder / MANIFEST_NAME).read_text())
    change(tree)
    if tree.get("digest") == "":
        tree = PreparedManifest.model_validate(tree).sealed().model_dump(mode="json")
    (folder / MANIFEST_NAME).write_text(json.dumps(tree))


def _other_hash(tree: dict[str, Any]) -> None:
    tree["order"]["hash"]["seed"] = "0x1"
    tree["order_digest"] = PreparationSettings.model_validate(tree["order"]).digest
    tree["digest"] = ""


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda tree: tree["order"]["tables"].update(user=301),
            DataError,
            "was changed: its order does not match order_digest",
        ),
        (_other_hash, JobFileError, "hashed by version 1 with seed 0x5348.*, in the folder .* seed 0x1"),
        (lambda tree: tree["parts"].pop(1), DataError, "was changed: its content does not match digest"),
        (
            lambda tree: (tree["parts"].pop(1), tree.update(digest="")),
            DataError,
            r"its train parts have \d+ rows, but it states 8988",
        ),
        (lambda tree: tree.pop("digest"), DataError, "was changed: its content does not match digest"),
        (
            lambda tree: tree.update(version=4),
            DataError,
            "has version 4; this shadowsync reads versions up to 3",
        ),
        (lambda tree: tree.update(format="x"), DataError, "is not a manifest of shadowsync prepare"),
        (
            lambda tree: tree["parts"][0].update(name="../x.parquet"),
            DataError,
            r"is damaged \(parts.0.name: ",
        ),
        (lambda tree: tree.pop("parts"), DataError, r"is damaged \(parts: Field required\)"),
    ],
)
def test_a_changed_manifest(
    source: Tree, copy: Path, change: Callable[[dict[str, Any]], None], error: type[Exception], words: str
) -> None:
    _with_manifest(copy, change)
    with pytest.raises(error, match=words):
        on_folder(source, copy)


def test_no_manifest_or_half_of_one(source: Tree, copy: Path) -> None:
    manifest = copy / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"manifest\.json: is damaged"):
        on_folder(source, copy)
    manifest.unlink()
    with pytest.raises(DataError, match=r"has no manifest\.json: .* not finished; run shadowsync prepare"):
        on_folder(source, copy)


def test_sizes_are_compared_at_the_start(source: Tree, copy: Path) -> None:
    part = copy / "train-00001.parquet"
    content = part.read_bytes()
    job = on_folder(source, copy)
    assert plan_input(job).train
    part.write_bytes(content + b"x")
    with pytest.raises(DataError, match=rf"train-00001\.parquet: has {len(content) + 1} bytes; its manifest"):
        plan_input(job)
    part.unlink()
    with pytest.raises(DataError, match=r"train-00001\.parquet: cannot be read \(No such file"):
        plan_input(job)


def test_a_changed_bit_is_seen_when_it_is_read_and_by_verify(source: Tree, copy: Path) -> None:
    job = on_folder(source, copy)
    assert verify_folder(str(copy)).rows == sum(map(len, batches_of(job)))
    content = bytearray((copy / "train-00001.parquet").read_bytes())
    content[content.index(b"PAR1") + 400] ^= 1
    (copy / "train-00001.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"train-00001\.parquet: cannot be read \(.*CRC checksum"):
        list(batches_of(job))
    with pytest.raises(DataError, match=r"train-00001\.parquet: was altered: its SHA-256"):
        verify_folder(str(copy))


def test_a_part_of_another_preparation_or_with_other_rows(source: Tree, copy: Path) -> None:
    """Of the right size, by chance or by hand."""
    job = on_folder(source, copy)
    (span, *_) = plan_input(job).train
    path = copy / "train-00000.parquet"
    table = pq.read_table(path)
    users = table["user"].to_numpy().copy()
    users[7] = 300
    cases = {
        "belongs to another preparation": table.replace_schema_metadata({b"shadowsync.order": b"other"}),
        f"has {len(table) - 1} rows of 7 columns; its manifest states {len(table)}": table.slice(1),
        "column user has a row number beyond its table of 300 rows": table.set_column(
            3, table.schema.field("user"), [users]
        ),
    }
    for words, wrong in cases.items():
        pq.write_table(wrong, path, write_page_checksum=True)
        with pytest.raises(DataError, match=words):
            list(batches_of(job, [span]))
    users[7] = -1
    pq.write_table(table.set_column(3, table.schema.field("user"), [users]), path)
    with pytest.raises(DataError, match="column user has a row"):
        list(batches_of(job, [span]))
    pq.write_table(table, path)
    assert sum(len(batch) for batch in batches_of(job, [span])) == len(table)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("y", 2.0, "column y has a label that is neither 0 nor 1: 2.0 in row 7"),
        ("y", math.nan, "column y has a label that is neither 0 nor 1: nan in row 7"),
        ("price", math.nan, "column price has a number that is not finite, or below 0: nan in row 7"),
        ("hour", math.inf, "column hour has a number that is not finite, or below 0: inf in row 7"),
        ("at", -math.inf, "column at has a number that is not finite"),
        ("w", math.nan, "column w has a number that is not finite"),
        ("w", -1.0, "column w has a number that is not finite, or below 0: -1.0 in row 7"),
    ],
)
def test_a_damaged_number_is_the_folders_and_not_the_readers(
    source: Tree, copy: Path, name: str, value: float, words: str
) -> None:
    job = on_folder(source, copy)
    (span, *_) = plan_input(job).train
    path = copy / "train-00000.parquet"
    table = pq.read_table(path)
    values = table[name].to_numpy().copy()
    values[7] = value
    changed = table.set_column(table.column_names.index(name), table.schema.field(name), [values])
    pq.write_table(changed, path)
    with pytest.raises(DataError, match=words) as refused:
        list(batches_of(job, [span]))
    assert refused.value.where == f"{path}, row group 0"
    assert refused.value.remedy
    # A number below 0 is none of these.
    values[7] = -5.0 if name == "price" else 1.0
    pq.write_table(
        changed.set_column(table.column_names.index(name), table.schema.field(name), [values]), path
    )
    assert sum(len(batch) for batch in batches_of(job, [span])) == len(table)


@pytest.mark.parametrize("order", ["file", "time"])
def test_a_folder_that_is_prepared_anew_under_a_run_is_seen(tmp_path: Path, order: str) -> None:
    """With parts of the same names and sizes; by its readers, and by a run that goes on with it."""
    lines = csv_lines(4000).splitlines(keepends=True)
    if order == "time":
        lines[1:] = reversed(lines[1:])
    (tmp_path / "all.csv").write_text("".join(lines))
    tree, folder = csv_job(tmp_path / "all.csv", order=order, sort_limit_bytes=1 << 30), tmp_path / "folder"
    prepare_folder(job_of_tree(tree), folder)
    job = on_folder(tree, folder)
    spans, sizes = plan_input(job).train, [path.stat().st_size for path in sorted(folder.glob("*.parquet"))]
    assert {span.kind for span in spans} == {"row_groups" if order == "file" else "sorted"}
    want, saved = list(batches_of(job, spans)), describe_input(spans)
    prepare_folder(job_of_tree(tree), folder)
    assert same_batches(want, list(batches_of(job, spans))), "the same folder still"
    assert input_differences(saved, describe_input(plan_input(job).train)) == []
    flipped = [lines[0], *(f"{1 - int(line[0])}{line[1:]}" for line in lines[1:])]
    (tmp_path / "all.csv").write_text("".join(flipped))
    prepare_folder(job_of_tree(tree), folder, force=True)
    assert [path.stat().st_size for path in sorted(folder.glob("*.parquet"))] == sizes
    for span in spans:
        with pytest.raises(DataError, match=r"folder: differs from the folder that the job was planned with"):
            list(batches_of(job, [span]))
    again = input_differences(saved, describe_input(plan_input(job).train))
    assert again[0] == f"{folder / 'train-00000.parquet'} was prepared again"


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "criteo"])
def test_parts_are_refused_as_raw_input_but_not_to_score(tmp_path: Path, columns: bool) -> None:
    """Read as values they would be hashed and transformed a second time."""
    if columns:
        (tmp_path / "all.csv").write_text(csv_lines(3000))
        pq.write_table(pcsv.read_csv(tmp_path / "all.csv"), tmp_path / "all.parquet")
        tree = csv_job(tmp_path / "all.parquet", format="parquet")
    else:
        generate_log(tmp_path, examples=3000, eval_examples=1, seed=1, files=1, data_format="parquet")
        data = {"format": "parquet", "path": str(tmp_path / "train-*"), "span_bytes": 1 << 16}
        tree = {"data": data, "model": {"table_rows": 100}}
    prepare_folder(job_of_tree(tree), tmp_path / "folder")
    parts = str(tmp_path / "folder" / "train-*.parquet")
    raw = job_of_tree(tree | {"data": tree["data"] | {"path": parts}})
    with pytest.raises(DataError, match=r"belongs to a prepared folder.* set data.prepared to its folder"):
        plan_input(raw)
    # `eval` of a run on the folder.
    job = on_folder(tree, tmp_path / "folder")
    spans = JobInput(job).plan_raw([parts])
    assert same_batches(list(batches_of(job, spans)), list(batches_of(job)))
    assert JobInput(job).plan_raw(job.data.path) == JobInput(job_of_tree(tree)).plan(job.data.path)


def test_other_files_are_read_as_themselves(source: Tree, prepared: Made) -> None:
    """With the folder in the job, other patterns than its own are of the source's format."""
    reader = JobInput(on_folder(source, prepared[0]))
    (file,) = (path for path in Path(source["data"]["path"]).parent.iterdir() if path.name == "b.csv")
    spans = reader.plan([str(file)])
    assert {span.kind for span in spans} == {"bytes"}
    parts = reader.plan([source["data"]["path"]])
    assert {span.kind for span in parts} == {"row_groups"}


def test_source_files_of_parts(source: Tree, prepared: Made) -> None:
    paths = [span.path for span in plan_input(on_folder(source, prepared[0])).train]
    folder = os.path.dirname(source["data"]["path"])
    assert source_files([*paths, "/other/x.parquet"]) == [
        f"{folder}/a.csv",
        f"{folder}/b.csv",
        "/other/x.parquet",
    ]


def test_parts_are_plain_parquet_for_others(prepared: Made) -> None:
    table = pq.read_table(prepared[0] / "train-00000.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types["user"] == "int32"
    assert types["price"] == "float"
    assert re.fullmatch(r"list<element: int32( not null)?>", types["tags"])
    assert table["user"].to_numpy().max() < 300
    assert set(np.unique(table["y"].to_numpy())) == {0.0, 1.0}
    assert read_prepared(str(prepared[0])).parts[0].rows == len(table)
