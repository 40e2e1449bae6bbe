"""Positions of rows in their files: the same in every format, however rows are cut, left out and shuffled."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import UnreportedBadRows
from shadowsync.pipeline.data.columns.record_schema import RecordSchema
from shadowsync.pipeline.data.files import text
from shadowsync.pipeline.data.files.text import LineCounts
from shadowsync.pipeline.data.formats.records import read_records
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.check_rows import first_rows
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.tests.support.data.prepared import batches_of, on_folder

ROWS = 9000
# The column with the positions comes first, and the one of groups, which is read from the file, after it.
COLUMNS: dict[str, Any] = {
    "place": "row_number",
    "y": "label",
    "at": {"kind": "dense", "transform": "none"},
    "item": "categorical",
    "user": "group",
}


def lines() -> list[str]:
    """Rows that say in `at` which they are; some are bad."""
    return [f"{'no number' if at % 50 == 7 else at % 2},{at},i{at % 40},u{at % 9}\n" for at in range(ROWS)]


def job_on(path: Path | str, data_format: str = "csv", **data: Any) -> Job:
    section = {"format": data_format, "path": str(path), "columns": COLUMNS, "span_bytes": 1 << 16}
    bad = {"max_bad_rows": ROWS, "max_bad_fraction": 1.0}
    return job_of_tree({"data": section | bad | data, "model": {"table_rows": 100}, "trainer": {"batch": 64}})


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("y,at,item,user\n" + "".join(lines()), encoding="utf-8")
    return path


def files(csv: Path) -> dict[str, Job]:
    """The same rows in every format; those that can be cut are cut."""
    written = csv.read_bytes()
    headless = csv.with_name("headless.csv")
    headless.write_bytes(written.split(b"\n", 1)[1])
    packed = {"gz": csv.with_suffix(".csv.gz"), "zst": csv.with_suffix(".csv.zst")}
    packed["gz"].write_bytes(gzip.compress(written))
    packed["zst"].write_bytes(pa.compress(written, "zstd", asbytes=True))
    good = [at for at in range(ROWS) if at % 50 != 7]
    labels = pa.array([at % 2 if at in set(good) else None for at in range(ROWS)], pa.int64())
    table = pa.table({"y": labels, "at": pa.array(range(ROWS))})
    for name, count in (("item", 40), ("user", 9)):
        table = table.append_column(name, pa.array([f"{name[0]}{at % count}" for at in range(ROWS)]))
    noise = np.random.default_rng(1).bytes(200 * ROWS)
    table = table.append_column("noise", pa.array([noise[200 * at :][:200] for at in range(ROWS)]))
    pq.write_table(table, csv.with_suffix(".parquet"), row_group_size=500)
    return {
        "plain": job_on(csv),
        "without a header": job_on(headless, header=False),
        "gzip": job_on(packed["gz"]),
        "zstd": job_on(packed["zst"]),
        "parquet": job_on(csv.with_suffix(".parquet"), "parquet"),
    }


def test_every_format_has_the_same_positions(csv: Path) -> None:
    good = np.array([at for at in range(ROWS) if at % 50 != 7])
    for name, job in files(csv).items():
        source = JobInput(job)
        spans = source.plan(job.data.path)
        # In reverse, as a reader may get them.
        chunks = [
            [chunk.examples for chunk in source.chunks(span, UnreportedBadRows())] for span in spans[::-1]
        ]
        assert (len(spans) > 1) == (name not in ("gzip", "zstd")), (
            "the control: positions within spans differ"
        )
        found = [examples for parts in chunks[::-1] for examples in parts]
        positions = np.concatenate([examples.groups[0] for examples in found])
        assert np.array_equal(positions, good), name
        assert np.array_equal(np.concatenate([examples.dense[:, 0] for examples in found]), good)
        # Those of the other column of groups stay with their names.
        assert len(np.unique(np.concatenate([examples.groups[1] for examples in found]))) == 9


@pytest.mark.parametrize(
    "data",
    [
        {"shuffle_window": 700},
        {"split": {"by": "fraction", "test": 0.3}},
        {"negative_share": 0.5},
        {"split": {"by": "last", "column": "item"}},
    ],
)
def test_positions_stay_with_their_rows(csv: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    """Also in a prepared folder, whose parts are other files."""
    job = job_on(csv, **data)
    tree = job.model_dump(mode="json", exclude_unset=True)
    prepare_folder(job, tmp_path / "prepared")
    for one in (job, on_folder(tree, tmp_path / "prepared")):
        batches = list(batches_of(one))
        positions = np.concatenate([batch.groups[0] for batch in batches])
        assert np.array_equal(positions, np.concatenate([batch.dense[:, 0] for batch in batches]))
        assert 1000 < len(positions) == len(np.unique(positions))
        if "shuffle_window" in data:
            assert (np.diff(positions.astype(np.int64)) < 0).any(), "the control: rows are shuffled"


def test_empty_and_malformed_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("y,at,item,user\n0,0,a,u\n\nnot a row\n1,3,b,u\n", encoding="utf-8")
    job = job_on(path)
    (span,) = JobInput(job).plan(job.data.path)
    (chunk,) = JobInput(job).chunks(span, UnreportedBadRows())
    assert chunk.examples.groups[0].tolist() == [0, 3]
    assert [row.values["place"] for row in first_rows(job, span)] == [("", "row 0"), ("", "row 3")]


def test_lines_before_spans_are_counted_once(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counted, size = list[tuple[int, int]](), text.count_newlines, csv.stat().st_size

    def noted(path: str, stop: int, start: int = 0) -> int:
        read.append((start, stop))
        return counted(path, stop, start)

    monkeypatch.setattr(text, "count_newlines", noted)
    counts, written = LineCounts(), csv.read_bytes()
    starts = [0, *np.random.default_rng(1).permutation(size - 1)[:40] + 1]
    for start in [*starts, *starts]:
        found = counts.before(Span(0, str(csv), "bytes", int(start), size))
        assert found == (written[: max(int(start) - 1, 0)].count(b"\n") + 1 if start else 0)
    assert len(read) <= 40
    ends = [stop for _, stop in read]
    assert len(set(ends)) == len(ends)
    assert any(start for start, _ in read), "the control: some go on from others"


def test_a_job_without_them_counts_nothing(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [line for line in lines() if not line.startswith("no")]
    csv.write_text("y,at,item,user\n" + "".join(good), encoding="utf-8")
    monkeypatch.delattr(LineCounts, "before")
    assert len(list(batches_of(job_on(csv, columns=COLUMNS | {"place": "ignored"}, header=True)))) > 1
    with pytest.raises(AttributeError):
        list(batches_of(job_on(csv)))


@pytest.mark.parametrize(
    ("data", "validation", "said"),
    [
        ({"columns": COLUMNS | {"other": "row_number"}}, {}, "place and other are of kind 'row_number'"),
        (
            {"columns": COLUMNS | {"place": {"kind": "row_number", "source": "at"}}},
            {},
            "data.columns.place.source: given; a row_number is made of no column of the file",
        ),
        (
            {"path": "kafka://broker/log", "header": False},
            {},
            'place.kind: "row_number" given; it is for files',
        ),
        ({}, {"group": "place"}, "'place' is no column of kind \"group\""),
        ({"format": "criteo_tsv"}, {}, "has its own"),
    ],
)
def test_what_is_refused(data: dict[str, Any], validation: dict[str, Any], said: str) -> None:
    section = {"format": "csv", "path": "x", "columns": COLUMNS}
    with pytest.raises(JobFileError) as caught:
        job_of_tree({"data": section | data, "validation": validation})
    assert said in str(caught.value)
    assert job_of_tree({"data": section, "validation": {"group": "user"}}).data.row_number == "place"


def test_a_topic_that_is_scored_is_refused() -> None:
    job = job_on("x", header=False)
    schema = RecordSchema(job.data, job.column_rows)
    span = Span(0, "kafka://broker/log/0", "offsets", 0, 10)
    with pytest.raises(DataError, match="is a topic, and column place has row numbers"):
        list(read_records(span, schema, UnreportedBadRows()))
