"""Jobs whose input has a schema, and what a reader makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.hashing import column_number, hash_bytes, table_rows_of
from shadowsync.pipeline.data.schema import Examples
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree

COLUMNS: dict[str, Any] = {
    "y": {"kind": "label", "threshold": 4},
    "age": "dense",
    "user": "categorical",
    "tags": {"kind": "multi_hot", "delimiter": "|"},
    "at": "timestamp",
    "w": "weight",
}
HEADER = ",".join(COLUMNS)


def schema_job(
    path: Path | str, data_format: str = "csv", columns: Mapping[str, Any] = COLUMNS, **data: Any
) -> Job:
    """A job that reads `path`; further keys are those of its data section."""
    section = {"format": data_format, "path": str(path), "columns": dict(columns)} | data
    return job_of_tree({"data": section, "model": {"table_rows": 1000}})


def write_lines(path: Path, *lines: str, header: str = HEADER) -> Path:
    """A text file of a header and lines."""
    path.write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")
    return path


def read_spans(job: Job, spans: Iterable[Span], bad_rows: BadRows | None = None) -> Examples:
    """All examples of some spans."""
    source = JobInput(job)
    bad = bad_rows if bad_rows is not None else BadRows(0)
    return Examples.join([chunk.examples for span in spans for chunk in source.chunks(span, bad)])


def read_all(job: Job, bad_rows: BadRows | None = None) -> Examples:
    """All examples of the job's `data.path`."""
    return read_spans(job, JobInput(job).plan(job.data.path), bad_rows)


def assert_same_examples(one: Examples, other: Examples) -> None:
    """Alike in all that a row of one label and no group has, types too."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("labels", "dense", "rows", "weights")]
    pairs += [(getattr(one.bags, name), getattr(other.bags, name)) for name in ("rows", "lengths")]
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def rows_of_ids(column: str, *ids: str) -> list[int]:
    """The rows of a column's ids in the tables of `schema_job`, as they are defined."""
    hashes = np.array([[hash_bytes(column_number(column), one.encode()) for one in ids]], np.uint64)
    found: list[int] = table_rows_of(hashes, (1000,))[0].tolist()
    return found
