"""Drafts for data as people have it: words for nothing, gaps, whole numbers as fractions, long files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.draft import draft as drafts
from shadowsync.pipeline.jobfile.draft import places as draft_places
from shadowsync.pipeline.jobfile.draft.sample import read_sample
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import draft, read, write


def test_a_word_for_nothing_is_a_value_where_it_has_one_other_beside_it(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "dead": [0, 1] * 50,
        "airbag": ["airbag", "none"] * 50,
        "belt": ["none", "belted"] * 50,
        "sex": ["f", "m", "f", "NA"] * 25,
    }
    text, job = draft(write(tmp_path / "log.csv", columns), "dead")
    assert list(job.data.columns) == ["dead", "airbag", "belt", "sex"]
    assert job.data.missing == ["", "NA"], text
    # The control: a column of numbers needs the word, and both columns are still there.
    columns["speed"] = [*(7 * at % 50 for at in range(50)), *(["none"] * 50)]
    text, job = draft(write(tmp_path / "log.csv", columns), "dead")
    assert job.data.missing == ["", "NA", "none"], text
    assert list(job.data.columns) == ["dead", "airbag", "belt", "sex", "speed"]
    assert 'airbag = "categorical"  # 1 value, or none' in text
    assert read(job) == 100


def test_rows_without_a_label_are_allowed_for(tmp_path: Path) -> None:
    columns = {"bought": ["yes", "no", "no", "NA", "no"] * 500, "item": list("abcde") * 500}
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert "20.0% of the rows have none" in text
    assert job.data.max_bad_fraction >= 0.2
    assert job.data.max_bad_rows >= 1000
    columns["bought"] = ["yes", "no", "no", "no", "no"] * 500
    _, job = draft(write(tmp_path / "log.csv", columns))
    assert (job.data.max_bad_fraction, job.data.max_bad_rows) == (0.01, 1000)


def test_a_column_that_is_mostly_empty_is_no_label_unless_it_is_named(tmp_path: Path) -> None:
    columns = {"seen": ["a", "b", "", "", "", ""] * 20, "item": list("xyzvwu") * 20}
    file = write(tmp_path / "log.csv", columns)
    with pytest.raises(JobFileError, match="no column has two values"):
        draft(file)
    _, job = draft(file, "seen")
    assert job.data.columns["seen"].kind == "label"


def test_the_texts_of_a_label_that_count_as_1(tmp_path: Path) -> None:
    file = write(tmp_path / "log.csv", {"end": ["paid", "late", "default"] * 40, "item": list("xyz") * 40})
    text, job = draft(file, "end", ["late", "default"])
    assert (job.data.columns["end"].positive, job.data.columns["end"].negative) == (["late", "default"], [])
    assert "66.7% are one of these, all others count as 0" in text
    assert read(job) == 120
    with pytest.raises(JobFileError, match="no row has the end 'lat'; there are default, late, paid"):
        draft(file, "end", ["lat"])


def test_whole_numbers_of_a_floating_point_type_are_no_ids(tmp_path: Path) -> None:
    numbers = [None, *(float(at % 4) for at in range(99))]
    frame = pl.DataFrame(
        {
            "click": [at % 2 for at in range(100)],
            "item": ["a", "b"] * 50,
            "engines": numbers,
            "user_id": [None, *(float(1000 + at) for at in range(99))],
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    text, job = draft(tmp_path / "log.parquet", "click")
    assert (job.data.columns["engines"].kind, job.data.columns["engines"].boundaries) == ("bucket", [1, 2, 3])
    assert "# user_id is left out: ids of a floating-point type" in text
    assert read(job) == 100


@pytest.mark.parametrize(
    "time", ["2017-01-{day:02}T06:00:{second:02}Z", "2017-01-{day:02} 06:00:{second:02}.5+01:00"]
)
def test_times_with_a_zone_are_times(tmp_path: Path, time: str) -> None:
    at = [time.format(day=1 + row % 28, second=row % 60) for row in range(1200)]
    file = write(tmp_path / "log.csv", {"click": [0, 1] * 600, "item": ["a", "b"] * 600, "when": at})
    text, job = draft(file, "click")
    assert job.data.columns["when"].kind == "timestamp"
    assert "# when_hour = " in text
    assert read(job) == 1200


def test_a_file_that_is_longer_than_the_sample_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "log.csv", {"click": [0, 1] * 500, "item": ["a", "b"] * 500})
    assert draft(file)[0].startswith("# Drafted by `shadowsync init` from all 1,000 rows of")
    monkeypatch.setattr(draft_places, "SAMPLE_BYTES", file.stat().st_size // 2)
    monkeypatch.setattr(draft_places, "_LEAST_BYTES", 64)
    sample = read_sample(str(file))
    assert not sample.whole
    assert 900 < sample.rows < 1100


def test_counts_are_numbers_where_there_are_hundreds_of_columns(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"click": [0, 1] * 50, "item": ["a", "b"] * 50}
    counts: dict[str, list[Any]] = {f"n{at}": [(row + at) % 3 for row in range(100)] for at in range(250)}
    _, job = draft(write(tmp_path / "log.csv", columns | counts), "click")
    assert job.data.columns["n7"].kind == "dense"
    assert [table.name for table in job.tables] == ["item"]
    assert read(job) == 100
    few = {name: counts[name] for name in ("n1", "n7")}
    _, job = draft(write(tmp_path / "log.csv", columns | few), "click")
    assert job.data.columns["n7"].kind == "categorical"


def test_line_breaks_in_fields_are_found_before_a_job_is_drafted(tmp_path: Path) -> None:
    good, broken = '0,"a, b"\n1,c\n' * 20, '1,"two\nlines"\n' * 3
    (tmp_path / "log.csv").write_text("click,note\n" + good + broken)
    # Also at the start, where the delimiter is looked for.
    (tmp_path / "log.csv").write_text("note,click\n" + '"two\nlines",1\n' * 3 + "a,0\nb,1\n" * 20)
    with pytest.raises(DataError, match="column 'note' has line breaks within 3 fields"):
        draft(tmp_path / "log.csv", "click")
    (tmp_path / "log.csv").write_text("click,note\n" + good + broken)
    said = r"column 'note' has line breaks within 3 fields .*convert the file to Parquet"
    with pytest.raises(DataError, match=said):
        draft(tmp_path / "log.csv", "click")


def test_a_job_file_with_a_blank_in_its_name(tmp_path: Path) -> None:
    data = write(tmp_path / "log.csv", {"click": [0, 1] * 50, "item": ["a", "b"] * 50})
    out = tmp_path / "my job.toml"
    done = CliRunner().invoke(main, ["init", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert load_job(out).run.name == "my-job"


def test_a_large_log_of_one_column_has_a_model_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dlrm multiplies pairs of vectors, and its bottom MLP is over dense features."""
    monkeypatch.setattr(drafts, "_SMALL_ROWS", 100)
    columns: dict[str, list[Any]] = {"click": [0, 1] * 100, "item": list("abcd") * 50}
    text, job = draft(write(tmp_path / "log.csv", columns), "click")
    assert job.model.name == "wide_deep"
    assert "bottom" not in text
    columns["shop"] = list("vwxyz") * 40
    text, job = draft(write(tmp_path / "log.csv", columns), "click")
    assert job.model.name == "dlrm"
    assert "bottom" not in text
    columns["price"] = [1.5 * row for row in range(200)]
    text, job = draft(write(tmp_path / "log.csv", columns), "click")
    assert (job.model.name, job.data.columns["price"].kind) == ("dlrm", "dense")
    assert "bottom = [128]" in text
