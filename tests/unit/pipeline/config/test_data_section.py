"""The input in a job file: its columns, its parts, and what does not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from shadowsync.pipeline.config.data import DataSection, seconds_of
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job

Load = Callable[..., Job]

CSV = """
[data]
format = "csv"
path = "log.csv"
"""
COLUMNS = """
[data.columns]
y = { kind = "label", threshold = 3 }
age = "dense"
user = "categorical"
tags = { kind = "multi_hot", pooling = "mean" }
at = "timestamp"
hour = { kind = "dense", source = "at", transform = "time" }
skip = "ignored"
"""


def _job(load: Load, *changes: str, columns: str = COLUMNS) -> Job:
    return load(CSV + columns, *changes)


@pytest.fixture
def load(write_job: Callable[[str], Path]) -> Load:
    """The job of a whole text, with overrides."""

    def load(text: str, *overrides: str) -> Job:
        return load_job(write_job(text), overrides)

    return load


def test_columns_become_tables_and_numbers(load: Load) -> None:
    job = _job(load)
    assert [(column.name, column.table, column.pooling) for column in job.data.table_columns] == [
        ("user", "user", ""),
        ("tags", "tags", "mean"),
    ]
    assert job.data.dense_width == 2
    assert [table.name for table in job.tables] == ["user", "tags"]
    assert job.model_inputs == (2, [16, 16])
    assert job.data.columns["age"].transform == "log"
    # The resolved job file says the same.
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_without_columns_they_are_criteos(load: Load) -> None:
    text = '[data]\nformat = "parquet"\npath = "x"\n'
    job = load(text, "data.dense_features=2", "data.categorical_features=3")
    assert [column.name for column in job.data.table_columns] == ["C1", "C2", "C3"]
    assert job.data.dense_width == 2


def test_an_override_adds_to_a_column_in_short(load: Load) -> None:
    job = _job(load, "data.columns.age.shift=38", "data.columns.new=categorical")
    assert (job.data.columns["age"].kind, job.data.columns["age"].shift) == ("dense", 38.0)
    assert job.data.table_columns[-1].name == "new"


def test_rows_in_the_order_of_time_are_not_shuffled_unless_asked(load: Load) -> None:
    assert _job(load).data.shuffle_window == 65_536
    timed = _job(load, "data.order=time").data
    assert (timed.shuffle_window, timed.spans_shuffled) == (0, False)
    asked = _job(load, "data.order=time", "data.shuffle_window=100").data
    assert (asked.shuffle_window, asked.spans_shuffled) == (100, False)
    assert _job(load).data.spans_shuffled
    assert Job.model_validate_json(_job(load, "data.order=time").model_dump_json()).data.shuffle_window == 0


@pytest.mark.parametrize("url", ["s3://bucket/day-*.csv", "http://host/a.csv.gz", "memory://a.csv"])
def test_urls_are_left_as_they_are(load: Load, url: str) -> None:
    job = _job(load, f"data.path={url}", f"data.validation_path={url}", "data.eval_path=here.csv")
    assert job.data.path == job.data.validation_path == [url]
    assert job.data.eval_path[0].endswith("/here.csv")
    assert job.data.eval_path[0].startswith("/")


HOUR = 'hour = { kind = "categorical", source = "at", part = "hour" }\n'


def test_the_table_of_a_part_of_a_time_has_the_rows_of_the_part(load: Load) -> None:
    assert _job(load, columns=COLUMNS.replace("hour =", "o =") + HOUR).column_rows == (100_000, 100_000, 25)
    given = HOUR + "[model]\ntable_rows = [5, 6, 25]\n[tables.hour]\nrows = 25\ndim = 2\n"
    assert _job(load, columns=COLUMNS.replace("hour =", "o =") + given).column_rows == (5, 6, 25)


Y = '[data.columns]\ny = "label"\n'


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("", '[data.columns]: is missing; data.format = "csv" needs it'),
        ('[data.columns]\nx = "categorical"\n', "data.columns: no column is a label; give 1 to 8"),
        (Y, 'data.columns: no column is "categorical", "bucket", "multi_hot" or "ip"; give at least one'),
    ],
)
def test_columns_that_must_be_there(refusal: Callable[..., str], columns: str, said: str) -> None:
    assert refusal(CSV + columns).startswith(said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            't = "timestamp"\nu = "timestamp"',
            "data.columns: t and u are of kind 'timestamp'; give at most one",
        ),
        ('t = "weight"\nu = "weight"', "data.columns: t and u are of kind 'weight'; give at most one"),
        (
            HOUR + "[tables.hour]\nrows = 24",
            "tables.hour.rows: 24 given; the table of column hour has 25 rows, one for each of its values",
        ),
        (HOUR + "[model]\ntable_rows = [9, 24]", "model.table_rows: 24 given; the table of column hour"),
        (
            HOUR.replace('"hour" }', '"minute" }'),
            "data.columns.hour.part: 'minute' given; input should be 'hour', 'weekday', 'day' or 'month'",
        ),
        (
            HOUR.replace("categorical", "timestamp"),
            'data.columns.hour.part: given; it is for kind "categorical", this is "timestamp"',
        ),
        (
            'z = { kind = "categorical", format = "%Y" }',
            'data.columns.z.format: given without a part; give part, such as part = "hour"',
        ),
        ('z = "numeric"', "data.columns.z.kind: 'numeric' given; input should be 'label', 'dense', "),
        ('z = { kind = "dense", shfit = 1 }', "data.columns.z.shfit: unknown key; did you mean 'shift'?"),
        ("z = { scale = 2 }", "data.columns.z.kind: is missing; give it a value"),
        (
            'z = { kind = "dense", pooling = "mean" }',
            'data.columns.z.pooling: given; it is for kind "multi_hot", this is "dense"',
        ),
        (
            'z = { kind = "label", threshold = 1, positive = ["a"] }',
            "data.columns.z: threshold and positive given; a label has one rule",
        ),
        (
            'z = { kind = "label", negative = ["a"] }',
            "data.columns.z.negative: given without positive; give both, or positive alone",
        ),
        (
            'z = { kind = "label", positive = ["a", 1] }',
            "data.columns.z: positive and negative mix texts and numbers; give texts or numbers",
        ),
        (
            'z = { kind = "dense", format = "%Y" }',
            'data.columns.z.format: given; it is for transform "time", this is "log"',
        ),
        (
            'z = { kind = "timestamp", format = "%H:%M" }',
            "data.columns.z.format: '%H:%M' has no year; write it as in %Y-%m-%d %H:%M",
        ),
    ],
)
def test_columns_that_are_refused(refusal: Callable[..., str], more: str, said: str) -> None:
    assert refusal(CSV + Y + 'x = "categorical"\n' + more).startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("format=criteo_tsv", 'data.columns: given; data.format = "criteo_tsv" has its own'),
        (
            "header=false columns.hour.source=att",
            "data.columns.hour.source: 'att' is not a column; did you mean 'at'?",
        ),
        ("quote='' delimiter=\"xx\"", "data.delimiter: 'xx' given"),
        ('delimiter="\\""', "data.quote: '\"' is the delimiter too; give another"),
        ("order=time readers=2", 'data.readers: 2 given; data.order = "time" needs 1'),
        ("order=time columns.at=ignored", 'data.order: "time" given; it needs a column of kind'),
        ("follow=true epochs=2", "data.epochs: does not go with data.follow; leave it at 1"),
        ("follow=true order=time", "data.order: does not go with data.follow; leave it at"),
        (
            "follow=true split.by=fraction split.test=0.1",
            "data.split: does not go with data.follow; give data.validation_path and eval_path",
        ),
        (
            "follow=true epochs=2 split.by=fraction split.test=0.1",
            "data.epochs: does not go with data.follow; leave it at 1; data.split: does not go with",
        ),
        ("split.test=0.1", "data.split.by: not given, but data.split has parts; give"),
        ("split.by=fraction", 'data.split.by: "fraction" given without parts; give validation or test'),
        ("split.by=time split.test=0.1", 'data.split.by: "time" given; it needs data.order'),
        (
            "split.by=fraction split.test=0.1 order=time",
            'data.split.by: "fraction" given; data.order = "time" needs "time"',
        ),
        (
            "split.by=fraction split.test=0.1 eval_path=x",
            "data.eval_path: given, and data.split.test too; give one of them",
        ),
        (
            "split.by=last split.column=C1 eval_path=x",
            'data.eval_path: given, and data.split.by = "last" too; give one of them',
        ),
        (
            "split.by=fraction split.test=0.5 split.validation=0.5",
            "data.split: validation 0.5 and test 0.5 leave nothing to train on",
        ),
        ("split.by=fraction split.test_from=3", "data.split: validation_from and test_from need by"),
        (
            "order=time split.by=time split.test_from=soon",
            "data.split: 'soon' is not a time; write 2026-03-31T12:00 or a number",
        ),
        (
            "order=time split.by=time split.test_from=3 split.validation_from=4",
            "data.split: validation_from is after test_from",
        ),
        ("split.progressive=0.2", "data.split.progressive: given; it needs data.epochs = 1, and"),
        (
            "split.progressive=0.2 order=time epochs=2",
            "data.split.progressive: given; it needs data.epochs = 1, and",
        ),
    ],
)
def test_refused_parts(refusal: Callable[..., str], changes: str, said: str) -> None:
    assert refusal(CSV + COLUMNS, *(f"data.{change}" for change in changes.split())).startswith(said)


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        ("1970-01-02", 86_400.0),
        ("1970-01-01T01:00", 3600.0),
        ("1970-01-01T01:00+01:00", 0.0),
        (7, 7.0),
        (7.5, 7.5),
    ],
)
def test_moments(moment: str | float, seconds: float) -> None:
    assert seconds_of(moment) == seconds


def test_a_port_needs_no_quotes(load: Load) -> None:
    assert _job(load, "watch.web=8098").watch.web == _job(load, 'watch.web="8098"').watch.web == "8098"


def test_a_prepared_folder_is_not_followed() -> None:
    data = {"format": "parquet", "path": ["x"], "prepared": "/folder"}
    with pytest.raises(
        ValidationError, match=r"data\.prepared: does not go with data\.follow; give the files"
    ):
        DataSection.model_validate(data | {"follow": True})
    assert DataSection.model_validate(data).prepared == "/folder"
