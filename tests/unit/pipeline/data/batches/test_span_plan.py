"""The plan: which files, in which order, cut where; and what is told before anything is read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import read_all, schema_job


def test_files_are_sorted_and_each_there_once(tmp_path: Path) -> None:
    for name in ("b.tsv", "a.tsv", "c.txt", "day[1].tsv"):
        (tmp_path / name).write_text("0\n")
    (tmp_path / "folder.tsv").mkdir()
    patterns = [f"{tmp_path}/*.tsv", f"{tmp_path}/a.*", f"{tmp_path}/./b.tsv", f"{tmp_path}/day[1].tsv"]
    spans = plan_spans(patterns, "criteo_tsv", 1 << 16)
    assert [Path(span.path).name for span in spans] == ["a.tsv", "b.tsv", "day[1].tsv"]
    assert [span.number for span in spans] == [0, 1, 2]


@pytest.mark.parametrize("span_bytes", [1, 10, 999, 65_536, 1 << 30])
def test_byte_ranges_are_adjacent_and_of_about_the_size(log: Path, span_bytes: int) -> None:
    spans = plan_spans([str(log)], "criteo_tsv", span_bytes)
    size = log.stat().st_size
    assert [span.number for span in spans] == list(range(len(spans)))
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == size
    sizes = [span.stop - span.start for span in spans]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= span_bytes
    assert all(span.kind == "bytes" for span in spans)


def test_a_compressed_file_is_one_span(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(log.read_bytes()))
    assert plan_spans([str(path)], "criteo_tsv", 1000) == [
        Span(0, str(path), "stream", 0, path.stat().st_size)
    ]


def test_row_groups_are_joined_up_to_the_size(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"label": list(range(1000))})
    pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    for span_bytes, count in ((1, 10), (size, 10), (3 * size, 4), (1 << 30, 1)):
        spans = plan_spans([str(path)], "parquet", span_bytes)
        assert len(spans) == count
        assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
        assert spans[-1].stop == 10
        assert {span.kind for span in spans} == {"row_groups"}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"label": [0], "I1": [1], "I2": [1], "C1": ["a"], "C2": ["a"]},
            "no column C3; its columns are label, I1, I2",
        ),
        ({"I1": [1], "I2": [1], "C1": ["a"], "C2": ["a"], "C3": ["a"]}, "no column label"),
        ({"label": [0], "I1": ["x"], "I2": [1], "C1": ["a"], "C2": ["a"], "C3": ["a"]}, "I1 has type string"),
        ({"label": [0], "I1": [1], "I2": [1], "C1": ["a"], "C2": [0.5], "C3": ["a"]}, "C2 has type double"),
        ({"label": [], "I1": [], "I2": [], "C1": [], "C2": [], "C3": []}, "has no rows"),
    ],
)
def test_wrong_parquet(
    tmp_path: Path, shape: FeatureShape, columns: dict[str, list[object]], says: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=rf"a\.parquet: .*{says}"):
        plan_spans([str(path)], "parquet", 1 << 16, shape)


def test_what_is_no_parquet(tmp_path: Path, log: Path) -> None:
    with pytest.raises(DataError, match=r"log\.tsv: cannot be read"):
        plan_spans([str(log)], "parquet", 1 << 16)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [1]}), path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        plan_spans([str(path)], "parquet", 1 << 16)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        *(("a.tsv", b"", ""), ("a.gz", b"", ""), ("a.parquet", b"", "")),
        ("a.gz", gzip.compress(b"", mtime=0), ": is empty; leave it out"),
    ],
)
def test_empty_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name}{says}"):
        plan_spans([str(path)], "parquet" if name == "a.parquet" else "criteo_tsv", 1 << 16)


def test_nothing_matches(tmp_path: Path, log: Path) -> None:
    for pattern in (f"{tmp_path}/*.csv", f"{tmp_path}/none.tsv"):
        with pytest.raises(DataError, match="matches no file; check the path") as caught:
            plan_spans([str(log), pattern], "criteo_tsv", 1 << 16)
        assert pattern in str(caught.value)
    with pytest.raises(DataError, match=r"is a folder; name its files"):
        plan_spans([str(tmp_path)], "criteo_tsv", 1 << 16)
    with pytest.raises(DataError, match=r"orc.*use criteo_tsv, csv, tsv or parquet"):
        plan_spans([str(log)], "orc", 1 << 16)


def test_columns_of_text(
    tmp_path: Path, log: Path, shape: FeatureShape, lines: Callable[..., list[str]]
) -> None:
    """Wrong in all of the first lines is told at once; wrong in some is a matter of bad rows."""
    with pytest.raises(DataError, match=r"has 6 columns in its first line.* 40 .*data\.dense_features"):
        plan_spans([str(log)], "criteo_tsv", 1 << 16, FeatureShape(13, 26, (10,) * 26))
    path = tmp_path / "some.tsv"
    path.write_text("label\n" + "\n".join(lines(3)))
    assert len(plan_spans([str(path)], "criteo_tsv", 1 << 16, shape)) == 1


@pytest.mark.parametrize("rows", [(1,), (1, 2), (1, 2, 0), (1, 2, 2**31)])
def test_shape_and_tables_must_fit(rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="table"):
        FeatureShape(2, 3, rows)


@pytest.mark.parametrize("data_format", ["parquet", "csv"])
def test_what_spark_leaves_beside_the_data(
    tmp_path: Path, data_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty shards and marks are skipped; a file that is named is refused if it is empty."""
    columns = {"y": "label", "x": "categorical"}
    day = tmp_path / "day=1"
    (day / "_temporary" / "0").mkdir(parents=True)
    for mark in ("_SUCCESS", "_metadata", "_started_1", ".part-0.crc", "part-0.crc", "_temporary/0/part"):
        (day / mark).touch()
    for number, rows in enumerate((0, 3, 0)):
        file = day / f"part-{number}.{data_format}"
        table = pa.table({"y": pa.array([1] * rows, pa.int64()), "x": pa.array(["a"] * rows, pa.string())})
        if data_format == "parquet":
            pq.write_table(table, file)
        else:
            file.write_text("y,x\n" + "1,a\n" * rows if number else "")
    job = schema_job(tmp_path / "*" / "*", data_format, columns)
    spans = JobInput(job).plan(job.data.path)
    assert [Path(span.path).name for span in spans] == [f"part-1.{data_format}"]
    assert "2 files without rows skipped, the first is" in caplog.text
    assert "part-0" in caplog.text
    for path in (day / f"part-0.{data_format}", day / "part-[02]*"):
        alone = schema_job(path, data_format, columns)
        with pytest.raises(DataError, match=r"part-0.*(is empty|has no rows); leave it out"):
            JobInput(alone).plan(alone.data.path)


def test_the_remedy_fits_the_type(tmp_path: Path) -> None:
    columns = {"y": "label", "x": "categorical", "tags": "multi_hot"}
    uuids = pa.array([bytes(16)], pa.binary(16))
    path = tmp_path / "log.parquet"
    for ids in (uuids, pa.ExtensionArray.from_storage(pa.uuid(), uuids)):
        pq.write_table(pa.table({"y": [1], "x": ids, "tags": [["a"]]}), path)
        with pytest.raises(DataError, match=r"column x has type .*; write the column as texts"):
            read_all(schema_job(path, "parquet", columns))
    pq.write_table(
        pa.table({"y": [1], "x": ["a"], "tags": pa.array([[1, 2]], pa.list_(pa.int64(), 2))}), path
    )
    with pytest.raises(
        DataError, match=r"column tags has type fixed_size_list.*; write the column as a list of any"
    ):
        read_all(schema_job(path, "parquet", columns))
