"""Exports of what changed: applied in order they give the whole export, and nothing else is accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.errors import DataError, JobFileError, ResourceError
from shadowsync.pipeline.saved_model.exported import EXPORT_MANIFEST, Export, write_export_manifest
from shadowsync.pipeline.saved_model.increment import merge_exports, tables_at
from shadowsync.pipeline.saved_model.table_files import TableFormat, TableRows, read_tables, write_tables
from shadowsync.pipeline.types import Float32Array

SHAPES = {"user": (40, 4), "item / 2": (7, 2)}
Tables = dict[str, Float32Array]
FORMATS: tuple[TableFormat, ...] = ("parquet", "safetensors")


def first_tables() -> Tables:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def changed(tables: Tables, seed: int, count: int) -> Tables:
    """The tables with other values in some rows; zeros with a sign among them."""
    rng = np.random.default_rng(seed)
    after = {name: values.copy() for name, values in tables.items()}
    for values in after.values():
        rows = rng.integers(0, len(values), min(count, len(values)))
        values[rows] = rng.choice([0.0, -0.0, 1.5, 1e-40], size=(len(rows), values.shape[1]))
    return after


def write_export(
    folder: Path,
    version: str,
    tables: Tables,
    form: TableFormat,
    since: Export | None = None,
    rule: str = "a",
) -> Path:
    """As `export_model` writes it, with another dense part."""
    folder.mkdir()
    (folder / "dense.pt2").write_text(version)
    manifest: dict[str, Any] = {"version": version, "examples_trained": 10, "dense": {"file": "dense.pt2"}}
    manifest |= dict.fromkeys(("data", "hash", "row_rule", "bag_rule"), rule)
    rows = {name: TableRows.all_of(values) for name, values in tables.items()}
    if since is not None:
        before = tables_at(since)
        rows = {name: table.changes_since(before[name]) for name, table in rows.items()}
        manifest["since"] = since.reference()
    files = write_tables(rows, form, folder, whole=since is None)
    manifest["tables"] = [
        {"name": name, "rows": len(values), "dim": values.shape[1], "file": files.get(name)}
        for name, values in tables.items()
    ]
    write_export_manifest(manifest, folder)
    return folder


def write_chain(folder: Path, states: Sequence[Tables], form: TableFormat) -> list[Path]:
    """A whole export of the first state, and an increment for each other one."""
    folders = [write_export(folder / "v0", "v0", states[0], form)]
    for at, state in enumerate(states[1:], 1):
        folders.append(write_export(folder / f"v{at}", f"v{at}", state, form, Export.open(folders[-1])))
    return folders


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    states = [first_tables()]
    for seed in (1, 2, 3):
        states.append(changed(states[-1], seed, 5))
    return write_chain(tmp_path, states, "parquet")


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=3), st.sampled_from(FORMATS))
def test_all_in_order_give_the_whole_export_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], form: TableFormat
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    states = [first_tables()]
    for seed, count in changes:
        states.append(changed(states[-1], seed, count))
    folders = write_chain(folder, states, form)
    merged = merge_exports(folders, folder / "merged")
    whole = write_export(folder / "whole", f"v{len(changes)}", states[-1], form)
    assert merged == json.loads((whole / EXPORT_MANIFEST).read_text())
    for file in whole.iterdir():
        assert file.read_bytes() == (folder / "merged" / file.name).read_bytes(), file.name


def test_an_increment_has_only_what_changed(chain: list[Path]) -> None:
    first, second = (Export.open(folder) for folder in chain[:2])
    rows = second.rows()
    before, after = tables_at(first), tables_at(second)
    for name, (count, dim) in SHAPES.items():
        assert 0 < len(rows[name].rows) < count
        assert rows[name].vectors.shape[1] == dim
        others = np.setdiff1d(np.arange(count), rows[name].rows)
        np.testing.assert_array_equal(before[name].vectors[others], after[name].vectors[others])
    assert before["user"].changes_since(before["user"]).rows.size == 0


def test_zeros_of_another_sign_have_changed() -> None:
    before, after = np.zeros((2, 1), np.float32), np.array([[0.0], [-0.0]], np.float32)
    assert TableRows.all_of(after).changes_since(TableRows.all_of(before)).rows.tolist() == [1]


def grown(vectors: dict[int, float]) -> TableRows:
    keys = np.array(sorted(vectors), np.uint64)
    values = [[vectors[key], -vectors[key]] for key in sorted(vectors)]
    return TableRows(keys, np.array(values, np.float32).reshape(-1, 2))


@given(
    states=st.lists(
        st.dictionaries(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]), st.sampled_from([0.0, -0.0, 1.5])),
        min_size=1,
        max_size=5,
    ),
    form=st.sampled_from(FORMATS),
)
def test_changes_of_a_growing_table_give_the_whole(
    tmp_path: Path, states: list[dict[int, float]], form: TableFormat
) -> None:
    def through_a_file(table: TableRows, *, whole: bool) -> TableRows:
        files = write_tables({"t": table}, form, tmp_path, whole=whole)
        return read_tables(tmp_path, [{"name": "t", "dim": 2, "file": files["t"]}])["t"]

    tables = [grown(state) for state in states]
    now = through_a_file(tables[0], whole=True)
    for before, after in pairwise(tables):
        changes = through_a_file(after.changes_since(before), whole=False)
        assert set(changes.gone.tolist()) == set(before.rows.tolist()) - set(after.rows.tolist())
        now = now.with_changes(changes)
        assert now.rows.tobytes() == after.rows.tobytes()
        assert now.vectors.tobytes() == after.vectors.tobytes()
    assert grown({1: 0.0}).changes_since(grown({1: -0.0})).rows.tolist() == [1]
    assert not len(tables[-1].changes_since(tables[-1]).rows)


def test_a_link_that_is_missing_is_named(chain: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "merged"
    with pytest.raises(DataError, match=r"v2: needs version v1 before it; .*v0 has version v0; give"):
        merge_exports([chain[0], chain[2]], out)
    with pytest.raises(DataError, match=r"v1: is an increment, since version v0; begin with a whole export"):
        merge_exports(chain[1:], out)
    chain[1].rename(tmp_path / "renamed")
    assert tables_at(Export.open(chain[3])), "folders may have any name"
    (tmp_path / "renamed").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    with pytest.raises(DataError, match=r"v2: is an increment since version v1, which is not beside it; put"):
        tables_at(Export.open(chain[3]))
    assert not out.exists()


def test_an_increment_of_a_model_that_has_not_changed_is_a_link_as_others_are(tmp_path: Path) -> None:
    """As of a job that exports every hour, and had no new checkpoint for two of them."""
    states = [first_tables()]
    for seed in (1, 2):
        states.append(changed(states[-1], seed, 5))
    # By their names they come before what they are since.
    last = Export.open(write_export(tmp_path / "z", "v0", states[0], "parquet"))
    for name, version, state in (
        ("y", "v0", 0),
        ("x", "v0", 0),
        ("w", "v1", 1),
        ("v", "v1", 1),
        ("u", "v2", 2),
    ):
        last = Export.open(write_export(tmp_path / name, version, states[state], "parquet", last))
    found = tables_at(last)
    for name, values in states[2].items():
        assert found[name].vectors.tobytes() == values.tobytes()


def test_other_folders_of_a_version_are_passed_over(chain: list[Path], tmp_path: Path) -> None:
    expected = tables_at(Export.open(chain[3]))
    # All come before the one that is wanted, by their names.
    items = tmp_path / "items"
    items.mkdir()
    (items / EXPORT_MANIFEST).write_text('{"version": "v0", "items": {}, "files": []}')
    write_export(tmp_path / "a", "v0", first_tables(), "none")
    damaged = write_export(tmp_path / "b", "v0", first_tables(), "parquet")
    next(damaged.glob("*.parquet")).write_bytes(b"")
    found = tables_at(Export.open(chain[3]))
    assert all(found[name].vectors.tobytes() == table.vectors.tobytes() for name, table in expected.items())
    # The control: without it each is refused by its name.
    shutil.rmtree(chain[0])
    with pytest.raises(DataError, match=r"a: has no tables"):
        tables_at(Export.open(chain[3]))


def test_a_damaged_export_is_refused(chain: list[Path], tmp_path: Path) -> None:
    table = next(chain[1].glob("*.parquet"))
    whole = table.read_bytes()
    for harmed in (whole[:-1], whole[:-1] + b"\0"):
        table.write_bytes(harmed)
        with pytest.raises(DataError, match=rf"v1: {table.name} is missing or altered"):
            merge_exports(chain, tmp_path / "merged")
    table.unlink()
    with pytest.raises(DataError, match="is missing or altered"):
        tables_at(Export.open(chain[2]))
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": "1", "tables": 3, "files": 3}'])
def test_what_is_no_export_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="has no manifest of an export"):
        Export.open(tmp_path)
    (tmp_path / EXPORT_MANIFEST).write_text(text)
    with pytest.raises(DataError, match="has no manifest of an export"):
        Export.open(tmp_path)


def test_exports_without_a_version_or_without_tables_are_refused(tmp_path: Path) -> None:
    whole = write_export(tmp_path / "whole", "v0", first_tables(), "none")
    with pytest.raises(DataError, match="has no tables; export them too"):
        Export.open(whole)
    manifest = json.loads((whole / EXPORT_MANIFEST).read_text())
    del manifest["version"]
    (whole / EXPORT_MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="was written before exports had a version"):
        Export.open(whole)


def test_another_model_is_refused(chain: list[Path], tmp_path: Path) -> None:
    base = Export.open(chain[0])
    other = write_export(tmp_path / "rule", "v9", first_tables(), "parquet", base, rule="b")
    with pytest.raises(JobFileError, match="is an export of another model: its 'data' differs"):
        merge_exports([chain[0], other], tmp_path / "merged")
    fewer = {"user": first_tables()["user"]}
    less = write_export(tmp_path / "less", "v9", fewer, "parquet", base)
    with pytest.raises(JobFileError, match="its tables differ"):
        merge_exports([chain[0], less], tmp_path / "merged")


def test_nothing_is_overwritten_and_no_circle_is_followed(chain: list[Path]) -> None:
    with pytest.raises(ResourceError, match="exists already"):
        merge_exports(chain[:2], chain[3])
    manifest = json.loads((chain[1] / EXPORT_MANIFEST).read_text())
    manifest["since"]["version"] = "v2"
    (chain[1] / EXPORT_MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"v1: is an increment since version v2, which is not beside it"):
        tables_at(Export.open(chain[2]))
