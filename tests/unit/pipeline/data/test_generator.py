"""The generator: its files, its manifest, and what is left after an interrupt."""

from __future__ import annotations

import errno
import hashlib
import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from shadowsync.pipeline.data.generator import generator
from shadowsync.pipeline.data.generator.columns import BLOCK_EXAMPLES, COUNT_COLUMNS, ID_COLUMNS, ids_of_ranks
from shadowsync.pipeline.data.generator.generator import LogManifest, draw_rows, generate_log, read_manifest
from shadowsync.pipeline.data.generator.manifest import write_manifest
from shadowsync.pipeline.data.generator.teacher import Teacher
from shadowsync.pipeline.errors import DataError, JobFileError, ResourceError
from shadowsync.tests.support.synced import Synced

COUNTS = [f"I{number}" for number in range(1, len(COUNT_COLUMNS) + 1)]
IDS = [f"C{number}" for number in range(1, len(ID_COLUMNS) + 1)]
Format = Literal["criteo_tsv", "parquet"]


def generate(directory: Path, **changed: Any) -> LogManifest:
    order: dict[str, Any] = {"examples": 8_000, "eval_examples": 1_000, "seed": 7, "data_format": "parquet"}
    return generate_log(directory, **(order | changed))


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    schema = {"label": pl.Int32} | dict.fromkeys(COUNTS, pl.Int32) | dict.fromkeys(IDS, pl.String)
    return pl.read_csv(path, separator="\t", has_header=False, schema=schema)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("data_format", "compression"),
    [
        ("parquet", "none"),
        ("parquet", "zst"),
        ("criteo_tsv", "none"),
        ("criteo_tsv", "gz"),
        ("criteo_tsv", "zst"),
    ],
)
def test_same_seed_same_bytes(tmp_path: Path, data_format: Format, compression: Any) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        generate(tmp_path / name, seed=seed, examples=500, data_format=data_format, compression=compression)
    first, again, other = (digests(tmp_path / name) for name in "abc")
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


@pytest.mark.parametrize("data_format", ["criteo_tsv", "parquet"])
def test_manifest_agrees_with_files(tmp_path: Path, data_format: Format) -> None:
    manifest = generate(tmp_path, data_format=data_format, files=2)
    teacher = Teacher(7)
    for part, examples in ((manifest.train, 8_000), (manifest.eval, 1_000)):
        paths = [tmp_path / file.name for file in part.files]
        rows = pl.concat([read(path) for path in paths])
        assert len(rows) == part.examples == sum(file.examples for file in part.files) == examples
        assert [path.stat().st_size for path in paths] == [file.bytes for file in part.files]
        assert part.bytes == sum(path.stat().st_size for path in paths)
        assert rows["label"].sum() == part.positives
        assert sum(rows[name].drop_nulls().n_unique() for name in IDS) == part.distinct_ids
        chances = chances_of(teacher, 7, rows)
        labels = rows["label"].to_numpy() == 1
        logloss = -np.log(np.where(labels, chances, 1 - chances)).mean()
        mean = labels.mean()
        entropy = -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean))
        assert part.teacher_logloss == pytest.approx(logloss, abs=1e-9)
        assert part.teacher_ne == pytest.approx(logloss / entropy, abs=1e-9)
        assert 0.2 < mean < 0.3


def ranks_of(seed: int, place: int, ids: Any) -> Any:
    known = ids_of_ranks(seed, place, np.arange(ID_COLUMNS[place].cardinality, dtype=np.int32))
    order = np.argsort(known)
    ranks = order[np.searchsorted(known, ids, sorter=order)]
    assert (known[ranks] == ids).all()
    return ranks


def chances_of(teacher: Teacher, seed: int, rows: pl.DataFrame) -> Any:
    counts = rows.select(pl.col(COUNTS).cast(pl.Float64)).to_numpy().T
    ranks = np.full((len(IDS), len(rows)), -1, np.int32)
    for place, name in enumerate(IDS):
        there = rows[name].is_not_null().to_numpy()
        ids = np.array([int(text, 16) for text in rows[name].drop_nulls()], np.uint32)
        ranks[place, there] = ranks_of(seed, place, ids)
    return teacher.probabilities(counts, ranks)


def test_formats_hold_the_same_rows(tmp_path: Path) -> None:
    frames = []
    for name, data_format in (("tsv", "criteo_tsv"), ("parquet", "parquet")):
        manifest = generate(tmp_path / name, data_format=data_format)
        frames.append(read(tmp_path / name / manifest.train.files[0].name))
    assert frames[0].equals(frames[1], null_equal=True)
    for name in IDS:
        assert frames[0][name].drop_nulls().str.contains("^[0-9a-f]{8}$").all()


def test_text_is_criteos(tmp_path: Path) -> None:
    generate(tmp_path, data_format="criteo_tsv", examples=200)
    text = (tmp_path / "train-000.tsv").read_bytes()
    lines = text.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 200
    assert all(line.count(b"\t") == 39 for line in lines)
    assert b'"' not in text
    assert b"\r" not in text


def test_files_and_length_change_no_row(tmp_path: Path) -> None:
    one = generate(tmp_path / "one")
    seven = generate(tmp_path / "seven", files=7)
    longer = generate(tmp_path / "longer", examples=16_000, eval_examples=0)
    whole = read(tmp_path / "one" / one.train.files[0].name)
    pieces = pl.concat([read(tmp_path / "seven" / file.name) for file in seven.train.files])
    assert len(seven.train.files) == 7
    assert whole.equals(pieces, null_equal=True)
    assert whole.equals(read(tmp_path / "longer" / "train-000.parquet")[:8_000], null_equal=True)
    for field in ("positives", "teacher_logloss", "teacher_ne", "distinct_ids"):
        assert getattr(one.train, field) == getattr(seven.train, field)
    assert longer.eval.files == ()
    assert longer.eval.teacher_ne is None


def test_chunks_change_no_row() -> None:
    rows = range(BLOCK_EXAMPLES - 100, 2 * BLOCK_EXAMPLES + 50)
    whole = list(draw_rows(3, "train", rows))
    pieces = list(draw_rows(3, "train", rows, chunk_examples=999))
    assert len(pieces) == math.ceil(len(rows) / 999)
    for field in ("counts", "ranks", "chance"):
        expected = np.concatenate([getattr(chunk, field) for chunk in whole], axis=-1)
        given = np.concatenate([getattr(chunk, field) for chunk in pieces], axis=-1)
        assert expected.shape[-1] == len(rows)
        np.testing.assert_array_equal(expected, given)


def test_parts_are_disjoint_streams(tmp_path: Path) -> None:
    generate(tmp_path, examples=3_000, eval_examples=3_000)
    train, evaluation = (read(tmp_path / f"{part}-000.parquet") for part in ("train", "eval"))
    features = COUNTS + IDS
    assert len(train.select(features).unique()) == 3_000
    assert len(train.join(evaluation, on=features, how="inner", nulls_equal=True)) == 0


def test_reuse(tmp_path: Path) -> None:
    first = generate(tmp_path, examples=500)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = generate(tmp_path, examples=500, reuse=True)
    assert second.reused
    assert not first.reused
    assert second.train == first.train
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    for changed in ({"examples": 501}, {"seed": 8}, {"files": 2}, {"compression": "zst"}):
        assert not generate(tmp_path, **({"examples": 500, "reuse": True} | changed)).reused


def test_reuse_sees_a_file_cut_short(tmp_path: Path) -> None:
    first = generate(tmp_path, examples=500)
    path = tmp_path / "train-000.parquet"
    os.truncate(path, path.stat().st_size - 1)
    assert read_manifest(str(path)) is None
    second = generate(tmp_path, examples=500, reuse=True)
    assert not second.reused
    assert path.stat().st_size == first.train.bytes


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_interrupt_leaves_nothing(tmp_path: Path, after: int, older: bool) -> None:
    if older:
        generate(tmp_path, seed=1, examples=100)

    def interrupt(done: int, total: int) -> None:
        assert 0 < done <= total == 900
        if done >= 300 * after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, examples=600, eval_examples=300, files=2, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, ResourceError), (errno.EACCES, DataError), (errno.EIO, DataError)]
)
def test_failed_write_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(generator, "write_manifest", fail)
    with pytest.raises(error, match=str(tmp_path)) as caught:
        generate(tmp_path, examples=100)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".train-000.parquet.partial").write_bytes(b"cut short")
    (tmp_path / "notes.txt").write_text("mine")
    generate(tmp_path, examples=100, files=3)
    generate(tmp_path, examples=100, files=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval-000.parquet",
        "log.json",
        "notes.txt",
        "train-000.parquet",
        "train-001.parquet",
    ]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train-000.tsv").write_text("mine")
    with pytest.raises(DataError, match=r"train-000\.tsv"):
        generate(tmp_path, examples=100)
    assert digests(tmp_path) == {"train-000.tsv": hashlib.sha256(b"mine").hexdigest()}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("examples", 0),
        ("eval_examples", -1),
        ("seed", -1),
        ("files", 0),
        ("files", 20_001),
        ("data_format", "csv"),
        ("compression", "bz2"),
    ],
)
def test_wrong_argument(tmp_path: Path, argument: str, value: Any) -> None:
    with pytest.raises(JobFileError, match=f"^{argument}: .*{value}.*give "):
        generate(tmp_path / "new", **{argument: value})
    assert not (tmp_path / "new").exists()


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another directory"):
        generate(tmp_path / "file", examples=10)


def test_the_click_rate_is_stated_and_changes_labels_alone(tmp_path: Path) -> None:
    frequent, rare = generate(tmp_path / "a"), generate(tmp_path / "b", click_rate=0.002)
    assert (frequent.click_rate, rare.click_rate) == (0.25, 0.002)
    assert 0 < rare.train.positives < 0.01 * rare.train.examples
    rows = [read(tmp_path / name / "train-000.parquet") for name in "ab"]
    assert rows[0].drop("label").equals(rows[1].drop("label"), null_equal=True)
    assert generate(tmp_path / "b", click_rate=0.002, reuse=True).reused
    assert not generate(tmp_path / "b", reuse=True).reused, "another rate is another log"
    with pytest.raises(JobFileError, match=r"click_rate: 0\.9 given; give 0\.0001 to 0\.5"):
        generate(tmp_path / "c", click_rate=0.9)


def test_files_are_on_the_disk_before_the_manifest_that_states_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch)
    before: dict[str, bool] = {}

    def noted(directory: Path, manifest: LogManifest) -> None:
        before.update({path.name: synced.has(path) for path in directory.iterdir()})
        write_manifest(directory, manifest)

    monkeypatch.setattr(generator, "write_manifest", noted)
    generate(tmp_path, examples=20, files=2)
    assert before == dict.fromkeys(("train-000.parquet", "train-001.parquet", "eval-000.parquet"), True)


def test_a_folder_whose_name_looks_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate(Path("a:b"), examples=10)
    assert len(list((tmp_path / "a:b").glob("train-*.parquet"))) == 1
