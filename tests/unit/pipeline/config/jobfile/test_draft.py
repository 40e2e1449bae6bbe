"""A first job file for data: what is guessed of its columns, and that its rows can be read with it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result
from shadowsync.cli import main
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.draft import draft as drafts
from shadowsync.pipeline.jobfile.draft.draft import draft_job
from shadowsync.pipeline.jobfile.draft.sample import read_sample
from shadowsync.pipeline.jobfile.ineffective import job_warnings
from shadowsync.pipeline.jobfile.load import load_job

ROWS = 2000
Columns = Mapping[str, Sequence[Any]]


def clicks() -> Columns:
    """Rows of every kind of column, and of columns that are of no use."""
    draw = random.Random(1)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(minutes=draw.randrange(500_000)) for _ in range(ROWS)]
    return {
        "": list(range(ROWS)),
        "user_id": [draw.randrange(400) for _ in range(ROWS)],
        "device": [f"d{draw.randrange(30)}" for _ in range(ROWS)],
        "age": [draw.choice(["", "NULL", draw.randrange(18, 90)]) for _ in range(ROWS)],
        "price": [round(draw.lognormvariate(2, 2), 2) for _ in range(ROWS)],
        "weekday": [draw.randrange(7) for _ in range(ROWS)],
        "tags": ["|".join(draw.sample("abcde", draw.randrange(4))) for _ in range(ROWS)],
        "at": [f"{at:%d/%m/%Y} {at.hour}:{at:%M}" for at in times],
        "clicked": [draw.choice(["yes", "no", "no"]) for _ in range(ROWS)],
        "version": [1] * ROWS,
        "request": [f"r{number}" for number in range(ROWS)],
    }


def write(
    path: Path, columns: Columns, delimiter: str = ",", *, header: bool = True, encoding: str = "utf-8"
) -> Path:
    rows = [list(columns)] * header + [list(row) for row in zip(*columns.values(), strict=True)]
    text = "".join(delimiter.join(str(value) for value in row) + "\n" for row in rows).encode(encoding)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def draft(source: Path | str, label: str = "", positive: Sequence[str] = ()) -> tuple[str, Job]:
    """The draft beside its data, and the job that it is."""
    folder = Path(source).parent
    text = draft_job(str(source), folder, name="mine", label=label, positive=positive)
    file = folder / "job.toml"
    file.write_text(text, encoding="utf-8")
    return text, load_job(file)


def read(job: Job) -> int:
    """How many rows can be read with it; fails at the first that cannot."""
    source = JobInput(job)
    return sum(
        len(chunk.examples)
        for span in source.plan(job.data.path)
        for chunk in source.chunks(span, BadRows(0))
    )


def test_every_kind_of_column(tmp_path: Path) -> None:
    text, job = draft(write(tmp_path / "log.csv", clicks()))
    kinds = {name: column.kind for name, column in job.data.columns.items()}
    assert kinds == {
        "user_id": "categorical",
        "device": "categorical",
        "age": "dense",
        "price": "dense",
        "weekday": "categorical",
        "tags": "multi_hot",
        "at": "timestamp",
        "clicked": "label",
    }
    columns = job.data.columns
    assert (columns["age"].transform, columns["price"].transform) == ("none", "log")
    assert columns["at"].format == "%d/%m/%Y %H:%M"
    assert (columns["clicked"].positive, columns["clicked"].negative) == (["yes"], ["no"])
    assert job.data.missing == ["", "NULL"]
    assert (job.data.order, job.data.split.by) == ("time", "time")
    # 32 times as many rows as values and a missing one, and more: no two of them share a row.
    assert {table.name: table.rows // 32 for table in job.tables} == {
        "user_id": 560,
        "device": 31,
        "weekday": 8,
        "tags": 6,
    }
    assert '# "" is left out: without a name' in text
    assert "# version is left out: always the same" in text
    assert "# request is left out: another value in almost every row" in text
    assert 'path = "log.csv"' in text
    assert read(job) == ROWS
    # The control: with a wrong guess rows cannot be read.
    wrong = job.model_copy(update={"data": job.data.model_copy(update={"missing": [""]})})
    with pytest.raises(DataError, match="age"):
        read(wrong)


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("log.tsv", {"delimiter": "\t"}, {"format": "tsv", "delimiter": ""}),
        ("log.txt", {"delimiter": ";"}, {"format": "csv", "delimiter": ";"}),
        ("log.csv.gz", {}, {"format": "csv"}),
        ("log.csv", {"encoding": "cp1252"}, {"encoding": "cp1252"}),
        ("log.csv", {"header": False}, {"header": False}),
    ],
)
def test_text_of_other_forms(
    tmp_path: Path, name: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    columns: Columns = {"click": [0, 1] * 50, "stadt": ["K\u00f6ln", "Bonn"] * 50, "age": [20.5, 31.0] * 50}
    label = "" if options.get("header", True) else "column_1"
    _, job = draft(write(tmp_path / name, columns, **options), label)
    assert {key: getattr(job.data, key) for key in settings} == settings
    assert read(job) == 100


@pytest.mark.parametrize(
    "time_format", ["%d.%m.%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%Y/%m/%d %H:%M:%S", "%m/%d/%YT%H:%M:%S"]
)
def test_times_of_other_countries(tmp_path: Path, time_format: str) -> None:
    begin = datetime(2024, 1, 20, tzinfo=UTC)
    times = [(begin + timedelta(hours=7 * row)).strftime(time_format) for row in range(100)]
    _, job = draft(
        write(tmp_path / "log.csv", {"click": [0, 1] * 50, "site": ["a", "b"] * 50, "ts": times}), "click"
    )
    assert (job.data.columns["ts"].kind, job.data.columns["ts"].format) == ("timestamp", time_format)
    assert read(job) == 100


@pytest.mark.parametrize("kind", ["lists", "texts"])
def test_lists_of_fractions_are_no_ids(tmp_path: Path, kind: str) -> None:
    tags = [[f"t{at % 5}", f"t{at % 7}"] for at in range(100)]
    scores = [[0.5 * (at % 5), 0.25 * (at % 7)] for at in range(100)]
    clicks = [at % 2 for at in range(100)]
    if kind == "lists":
        file = tmp_path / "log.parquet"
        pl.DataFrame({"click": clicks, "tags": tags, "scores": scores}).write_parquet(file)
    else:
        texts = {
            "tags": ["|".join(own) for own in tags],
            "scores": ["|".join(map(str, own)) for own in scores],
        }
        file = write(tmp_path / "log.csv", {"click": clicks, **texts})
    text, job = draft(file, "click")
    assert list(job.data.columns) == ["click", "tags"]
    assert 'of fractions; for weights of the ids of another list write weights = "scores" there' in text
    assert read(job) == 100


def test_names_with_a_type(tmp_path: Path) -> None:
    columns: Columns = {
        "user_id:token": list(range(100, 200)),
        "click:label": [0, 1] * 50,
        "timestamp:float": [881_250_949 + row for row in range(100)],
        "age:float": list(range(100, 0, -1)),
    }
    _, job = draft(write(tmp_path / "log.tsv", columns, "\t"))
    kinds = {name: column.kind for name, column in job.data.columns.items()}
    assert kinds == {
        "user_id:token": "categorical",
        "click:label": "label",
        "timestamp:float": "timestamp",
        "age:float": "dense",
    }


def test_numbers_with_a_decimal_comma(tmp_path: Path) -> None:
    """They are no lists; beside a column with points nobody knows what the others mean."""
    prices = [f"{row},{row % 10}5" for row in range(100)]
    lists = [",".join("abc"[: row % 4]) for row in range(100)]
    columns: Columns = {"click": [0, 1] * 50, "price": prices, "tags": lists}
    text, job = draft(write(tmp_path / "log.txt", columns, ";"), "click")
    assert list(job.data.columns) == ["click", "price", "tags"]
    assert job.data.columns["price"].kind == "dense"
    assert 'decimal = ","  # as in 1,5' in text
    assert read(job) == 100
    points = [row + 0.5 for row in range(100)]
    text, job = draft(write(tmp_path / "log.txt", {**columns, "cost": points}, ";"), "click")
    assert job.data.decimal == "."
    assert "# price is left out: numbers with a decimal comma; other columns have a decimal point" in text
    assert job.data.columns["cost"].kind == "dense"


def test_parquet_with_types(tmp_path: Path) -> None:
    at = [datetime(2024, 1, 1 + number % 9) for number in range(100)]
    frame = pl.DataFrame(
        {
            "label": [number % 3 == 0 for number in range(100)],
            "ids": [[number % 5, number % 7] for number in range(100)],
            "at": at,
            "later": at,
            "x": [number / 7 for number in range(100)],
            "s": [{"a": number} for number in range(100)],
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    text, job = draft(tmp_path / "log.parquet")
    kinds = {name: column.kind for name, column in job.data.columns.items()}
    assert kinds == {"label": "label", "ids": "multi_hot", "at": "timestamp", "x": "dense"}
    assert "# later is left out: another time; a job has one" in text
    assert "# s is left out: of type Struct" in text
    assert read(job) == 100


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_whose_size_a_server_does_not_tell(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = clicks()
    for number in range(2):
        write(tmp_path / f"part-{number}.csv", columns)
        pl.DataFrame(columns, strict=False).write_parquet(tmp_path / f"part-{number}.parquet")
    monkeypatch.setattr("shadowsync.pipeline.jobfile.draft.sample.file_size_bytes", lambda _: None)
    sample = read_sample(str(tmp_path / f"part-*.{kind}"))
    rows = len(next(iter(columns.values())))
    assert sample.rows == pytest.approx(2 * rows, rel=0.01)


def test_a_folder_of_one_kind(tmp_path: Path) -> None:
    columns: Columns = {"click": [0, 1] * 50, "item": ["a", "b"] * 50}
    for number in range(3):
        write(tmp_path / f"part-{number}.csv", columns)
    for mark in ("_SUCCESS", "_committed_1", ".part-0.csv.crc"):
        (tmp_path / mark).touch()
    text = draft_job(str(tmp_path), tmp_path, name="mine")
    assert 'path = "*.csv"' in text
    assert "from all 300 rows of" in text
    (tmp_path / "README.md").write_text("what it is")
    with pytest.raises(DataError, match=r"has files of several endings \(\.csv, \.md\); give the files"):
        draft_job(str(tmp_path), tmp_path, name="mine")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_empty_files_are_passed_over_as_a_job_does(tmp_path: Path, ending: str) -> None:
    (damaged := tmp_path / f"part-0.{ending}").touch()
    with pytest.raises(DataError, match="has no rows" if ending == "csv" else "0 bytes"):
        draft_job(str(tmp_path), tmp_path, name="mine")
    if ending == "parquet":
        damaged.unlink()
    rows = pl.DataFrame({"click": [0, 1] * 50, "item": ["a", "b"] * 50})
    for number, frame in enumerate((rows.head(0), rows), 1):
        path = tmp_path / f"part-{number}.{ending}"
        frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    assert "from all 100 rows of" in draft_job(str(tmp_path), tmp_path, name="mine")


@pytest.mark.parametrize(
    ("columns", "label", "said"),
    [
        (
            {"a": [1, 2] * 50, "b": ["x", "y"] * 50},
            "",
            r"not clear \(columns with two values: a, b\); name it",
        ),
        ({"a": [1, 2, 3, 4], "b": list("xyzw")}, "", r"not clear \(no column has two values\)"),
        ({"a": [1, 2] * 50, "b": ["x", "y"] * 50}, "c", "there is no column 'c'; there are a, b"),
        (
            {"click": [0, 1] * 50, "b": list("xyzw") * 25},
            "b",
            r"the label 'b' has 4 texts \(w, x, y, z\); say which of them count as 1: --positive TEXT",
        ),
        ({"click": [0, 1] * 50, "same": [7] * 100}, "", "no column looks like an id, a category or a number"),
    ],
)
def test_what_is_not_clear_is_asked(tmp_path: Path, columns: Columns, label: str, said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        draft(write(tmp_path / "log.csv", columns), label)


def test_a_rating_is_a_label_from_its_mean_on(tmp_path: Path) -> None:
    columns: Columns = {"rating": [1, 2, 3, 4, 5] * 20, "item": list("abcde") * 20}
    text, job = draft(write(tmp_path / "log.csv", columns), "rating")
    assert job.data.columns["rating"].threshold == 3
    assert "# 5 numbers: 1 from their mean on" in text
    assert read(job) == 100
    # The other way that the comment names is one.
    other = 'expression = "rating > 0"'
    assert f"; or {other} in place of threshold" in text
    (tmp_path / "other.toml").write_text(text.replace("threshold = 3 ", f"{other} "))
    expressed = load_job(str(tmp_path / "other.toml"))
    assert expressed.data.columns["rating"].expression == "rating > 0"
    assert read(expressed) == 100


def test_the_command_writes_a_file_and_replaces_none(tmp_path: Path) -> None:
    data = write(tmp_path / "log.csv", {"click": [0, 1] * 50, "item": ["a", "b"] * 50})
    out = tmp_path / "job.toml"

    def init(*options: str) -> Result:
        return CliRunner().invoke(main, ["init", str(data), "--out", str(out), *options])

    done = init()
    assert done.exit_code == 0, done.output
    assert "label: click\ncolumns: 1 label, 1 categorical; read the comments beside them\n" in done.output
    assert f"written: {out}" in done.output
    again = init()
    assert again.exit_code == 2
    assert "exists already; give another --out, or --force" in again.output
    assert init("--force").exit_code == 0


def test_hour_and_weekday_are_proposed_and_the_proposal_runs(tmp_path: Path) -> None:
    rows = "".join(
        f"{at % 2},u{at % 30},{1 + at % 28}/0{1 + at % 9}/2024 {10 + at % 9}:30\n" for at in range(300)
    )
    (tmp_path / "log.csv").write_text("clicked,user,time\n" + rows)
    text = draft_job(str(tmp_path / "log.csv"), tmp_path, name="draft")
    assert "\n# time_hour = {" in text
    (tmp_path / "draft.toml").write_text(text.replace("# time_", "time_"))
    job = load_job(tmp_path / "draft.toml")
    assert [table.name for table in job.tables] == ["user", "time_hour", "time_weekday"]
    assert job.data.columns["time_hour"].format == job.data.columns["time"].format != ""
    assert read(job) == 300


def test_a_draft_for_small_data_has_one_trainer_that_waits_for_its_validations(tmp_path: Path) -> None:
    rows = "".join(f"{at % 2},u{at % 7},{at}\n" for at in range(200))
    (tmp_path / "a.csv").write_text("clicked,user,price\n" + rows)
    _, job = draft(tmp_path / "a.csv")
    assert job.trainer.count == 1
    assert (job.validation.wait, job.validation.patience) == (True, 2)
    assert (job.model.name, job.data.epochs) == ("wide_deep", 10)


@pytest.mark.parametrize("small_rows", [100, 100_000])
@pytest.mark.parametrize("timed", [False, True])
def test_every_key_of_a_draft_has_an_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool, small_rows: int
) -> None:
    """Rows in the order of time are read once, so that no epoch ends before the last one."""
    monkeypatch.setattr(drafts, "_SMALL_ROWS", small_rows)
    columns = {name: values for name, values in clicks().items() if timed or name != "at"}
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert (job.data.order == "time", "scored while and after" in text) == (timed, job.validation.enabled)
    assert job.validation.enabled == (not timed or small_rows == 100)
    assert job_warnings(job) == []
