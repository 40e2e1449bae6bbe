"""Tables in memory as the input of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.errors import DataError, JobFileError, ResourceError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.jobfile.tables_in_memory import with_written_tables

COLUMNS = {"user": "categorical", "price": "dense", "clicked": "label"}
ROWS: dict[str, list[Any]] = {"user": ["a", None, "c"], "price": [1.0, 2.0, 3.0], "clicked": [0, 1, 0]}


def pandas() -> Any:
    """A frame of a package that shadowsync does not need itself."""
    return pytest.importorskip("pandas").DataFrame(ROWS)


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": pandas,
    "polars": lambda: pl.DataFrame(ROWS),
    "pyarrow": lambda: pa.table(ROWS),
    "batch": lambda: pa.RecordBatch.from_pydict(ROWS),
}


def tree(directory: Path, path: Any, **data: Any) -> dict[str, Any]:
    return {"run": {"directory": str(directory)}, "data": {"path": path, "columns": COLUMNS, **data}}


@pytest.mark.parametrize("kind", FRAMES)
def test_each_kind_of_table_is_a_file_of_the_job(tmp_path: Path, kind: str) -> None:
    written = with_written_tables(tree(tmp_path, FRAMES[kind](), eval_path=pa.table(ROWS)), [])
    job = job_of_tree(written)
    assert job.data.format == "parquet"
    for path in (*job.data.path, *job.data.eval_path):
        assert Path(path).parent == tmp_path / "data"
        assert pq.read_table(path).select(list(ROWS)).to_pydict() == ROWS


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("path", ["log.parquet", None])
def test_the_items_of_a_catalogue_may_be_a_table(tmp_path: Path, kind: str, path: str | None) -> None:
    whole = tree(tmp_path, path or pa.table(ROWS)) | {"validation": {"items": FRAMES[kind](), "group": "g"}}
    written = with_written_tables(whole, [])
    assert written["validation"]["group"] == "g"
    items = Path(written["validation"]["items"])
    assert items.parent == tmp_path / "data"
    assert pq.read_table(items).select(list(ROWS)).to_pydict() == ROWS
    log = Path(written["data"]["path"])
    assert str(log) == path or log.parent == items.parent
    assert written["data"]["format"] == "parquet"
    with pytest.raises(JobFileError, match=r"'csv' given, and validation\.items in memory"):
        with_written_tables(whole | {"data": {"path": "log.csv", "format": "csv"}}, [])


def test_the_same_rows_are_written_once_and_others_apart(tmp_path: Path) -> None:
    first = with_written_tables(tree(tmp_path, pa.table(ROWS)), [])
    # In other chunks, and with metadata.
    again = pa.concat_tables([pa.table(ROWS)[:1], pa.table(ROWS)[1:]]).replace_schema_metadata({"a": "b"})
    assert with_written_tables(tree(tmp_path, again), [])["data"] == first["data"]
    for other in (pa.table(ROWS)[:2], pa.table(ROWS | {"price": [1.0, 2.0, 4.0]})):
        assert with_written_tables(tree(tmp_path, other), [])["data"]["path"] != first["data"]["path"]
    assert len(list((tmp_path / "data").iterdir())) == 3


def test_a_directory_that_is_overridden_has_them(tmp_path: Path) -> None:
    written = with_written_tables(
        tree(tmp_path, pa.table(ROWS)), ["trainer.lr=1", f'run.directory="{tmp_path}/other"']
    )
    assert Path(written["data"]["path"]).parent == tmp_path / "other" / "data"


def test_a_job_of_files_is_as_it_was(tmp_path: Path) -> None:
    files = tree(tmp_path, ["a.parquet", "b.parquet"])
    assert with_written_tables(files, []) is files
    assert with_written_tables({"data": 3}, [])["data"] == 3


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"'csv' given, and data\.path in memory.*written as Parquet"):
        with_written_tables(tree(tmp_path, pa.table(ROWS), format="csv"), [])
    assert list(tmp_path.iterdir()) == []

    class NoTable:
        columns = ("a",)

    with pytest.raises(DataError, match=r"data\.path: do not form a table"):
        with_written_tables(tree(tmp_path, NoTable()), [])
    with pytest.raises(DataError, match=r"data\.path: a list with tables given; give one table"):
        with_written_tables(tree(tmp_path, [pa.table(ROWS), pa.table(ROWS)]), [])
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="data"):
        with_written_tables(tree(tmp_path / "file", pa.table(ROWS)), [])
