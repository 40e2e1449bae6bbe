"""Patterns in [data.columns]: what they match in CSV, Parquet and prepared folders, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.data.prepared import batches_of

HEADER = "y,aff_10,user,aff_2,city,aff_1"
ROWS = "1,0.5,ann,2,Rome,3\n0,1.5,bob,,Oslo,4\n" * 40
DATA = '[data]\nformat = "csv"\npath = "log*.csv"\n'
COLUMNS = '[data.columns]\ny = "label"\nuser = "categorical"\n'

Write = Callable[[str], Path]
Refusal = Callable[..., str]


@pytest.fixture(autouse=True)
def log(write_job: Write) -> Path:
    """A file beside the job file."""
    file = write_job("").with_name("log.csv")
    file.write_text(f"{HEADER}\n{ROWS}")
    return file


def _load(write_job: Write, columns: str, *overrides: str, data: str = DATA) -> Job:
    return load_job(write_job(data + columns), overrides)


def test_a_pattern_stands_for_columns_in_the_order_of_the_file(write_job: Write) -> None:
    job = _load(write_job, COLUMNS + '"aff_*" = { kind = "dense", transform = "none" }\ncity = "categorical"')
    assert list(job.data.columns) == ["y", "user", "aff_10", "aff_2", "aff_1", "city"]
    assert job.data.columns["aff_2"].transform == "none"
    assert sum(len(batch) for batch in batches_of(job)) == 80


def test_an_exact_name_wins(write_job: Write) -> None:
    job = _load(write_job, COLUMNS + '"*" = "dense"\naff_2 = "ignored"\ncity = "categorical"')
    kinds = {name: column.kind for name, column in job.data.columns.items()}
    assert kinds["aff_2"] == "ignored"
    assert [name for name, kind in kinds.items() if kind == "dense"] == ["aff_10", "aff_1"]


def test_a_column_whose_name_looks_like_a_pattern(write_job: Write, log: Path) -> None:
    log.write_text(f"{HEADER.replace('city', 'aff_?')}\n{ROWS}")
    job = _load(
        write_job, COLUMNS + '"aff_?" = "categorical"\n"[own]" = { kind = "dense", source = "aff_1" }'
    )
    assert list(job.data.columns) == ["y", "user", "aff_?", "[own]"]


def test_without_a_header_only_a_star_is_refused(write_job: Write, refusal: Refusal) -> None:
    plain = DATA + "header = false\n"
    assert "is_new?" in _load(write_job, COLUMNS + '"is_new?" = "dense"', data=plain).data.columns
    said = refusal(plain + COLUMNS + '"aff_*" = "dense"')
    assert "data.columns.aff_*: a pattern given; with data.header = false the files have no names" in said


def test_columns_of_parquet_and_overrides(write_job: Write, log: Path) -> None:
    table = pa.table({"y": [0, 1], "user": ["a", "b"], "f_b": [1.0, 2.0], "f_a": [1.0, 2.0]})
    pq.write_table(table, log.with_suffix(".parquet"))
    data = '[data]\nformat = "parquet"\npath = "log.parquet"\n'
    job = _load(write_job, COLUMNS, "data.columns.f_*.kind=dense", "data.columns.f_*.scale=2", data=data)
    assert list(job.data.columns) == ["y", "user", "f_b", "f_a"]
    assert job.data.columns["f_a"].scale == 2.0


def test_tables_of_matched_columns(write_job: Write) -> None:
    columns = COLUMNS + '"ci*" = "categorical"\n[tables.city]\nrows = 7\n[model]\ntable_rows = [10, 20]'
    assert [table.rows for table in _load(write_job, columns).tables] == [10, 7]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ('"afinity_*" = "dense"', "data.columns.afinity_*: the pattern matches no column; "),
        ('"us*" = "dense"', "data.columns.us*: the pattern matches only columns that have an entry of"),
        (
            '"aff_*" = "dense"\n"*_2" = "dense"',
            "data.columns: the patterns 'aff_*' and '*_2' both match column 'aff_2'; give aff_2 an entry",
        ),
        ('"aff_*" = "label"', "model.name: 'dlrm' has one logit, and data.columns has 4 labels (y, aff_10, "),
        ('"aff_*" = "weight"', "data.columns: aff_10 and aff_2 and aff_1 are of kind 'weight'; give at most"),
        ('"aff_*" = "numeric"', "data.columns.aff_*.kind: 'numeric' given; "),
    ],
)
def test_patterns_that_are_refused(refusal: Refusal, patterns: str, said: str) -> None:
    assert said in refusal(DATA + COLUMNS + patterns)


def test_a_column_that_only_one_file_has(write_job: Write, log: Path) -> None:
    """No column is left out in silence: the other file is refused when the input is planned."""
    log.with_name("log2.csv").write_text(f"{HEADER},aff_3\n{ROWS.replace('3', '3,1').replace('4', '4,1')}")
    job = _load(write_job, COLUMNS + '"aff_*" = "dense"')
    with pytest.raises(DataError, match=r"log\.csv: its header has no column 'aff_3'"):
        list(batches_of(job))


def test_files_that_are_not_there(write_job: Write, log: Path) -> None:
    log.unlink()
    with pytest.raises(DataError, match=r"log\*\.csv: matches no file"):
        _load(write_job, COLUMNS + '"aff_*" = "dense"')


def test_a_run_has_names_and_not_patterns(
    write_job: Write, log: Path, resolved: Callable[[Any], Job]
) -> None:
    """What was trained holds, whatever the files have since."""
    job = _load(write_job, COLUMNS + '"aff_*" = "dense"')
    log.write_text(f"{HEADER.replace('aff_1', 'aff_9')}\n{ROWS}")
    again = resolved(job)
    assert again == job
    with pytest.raises(DataError, match="no column 'aff_10'"):
        list(batches_of(again))
