"""Jobs that are prepared, and what a reader makes of source and folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder

Tree = dict[str, dict[str, Any]]
FIELDS = (
    *("labels", "dense", "rows", "weights", "bag_rows", "bag_lengths"),
    *("other_labels", "item_weights", "keys", "bag_keys", "groups"),
)
COLUMNS: dict[str, Any] = {
    "y": "label",
    "price": {"kind": "dense", "shift": 1.0, "scale": 2.0},
    "hour": {"kind": "dense", "source": "at", "transform": "time", "scale": 3600.0},
    "user": "categorical",
    "tags": {"kind": "multi_hot", "delimiter": "|", "max_ids": 3, "pooling": "mean"},
    "at": "timestamp",
    "w": "weight",
}
HEADER = "y,price,user,tags,at,w"


def csv_lines(rows: int, seed: int = 1, bad_every: int = 0) -> str:
    """Rows that fit COLUMNS, some values missing; every so many of them is malformed."""
    rng = np.random.default_rng(seed)
    lines = [HEADER]
    for at in range(rows):
        tags = "|".join(f"tag {tag}" for tag in rng.integers(0, 30, rng.integers(0, 5)))
        user = f"u{rng.integers(500)}" if rng.random() < 0.9 else ""
        price = f"{rng.integers(-5, 400)}.5" if rng.random() < 0.8 else ""
        line = f"{rng.integers(2)},{price},{user},{tags},{1_700_000_000 + 7 * at},{1 + at % 3}"
        lines.append("not,a,row" if bad_every and at % bad_every == bad_every - 1 else line)
    return "".join(f"{line}\n" for line in lines)


def csv_job(path: Path | str, **data: Any) -> Tree:
    """A job on such rows."""
    section = {"format": "csv", "path": str(path), "columns": COLUMNS, "span_bytes": 1 << 16}
    return {
        "data": section | data,
        "model": {"table_rows": 300, "embedding_dim": 4},
        "trainer": {"batch": 64},
    }


def on_folder(tree: Tree, folder: Path | str, **data: Any) -> Job:
    """The same job, reading a prepared folder."""
    return job_of_tree(tree | {"data": tree["data"] | {"prepared": str(folder)} | data})


def batches_of(job: Job, spans: list[Span] | None = None, window: int = 100) -> Iterator[Batch]:
    """All batches of the job's training, or of some spans."""
    source = JobInput(job)
    for span in plan_input(job).train if spans is None else spans:
        yield from source.batches(
            span, epoch=0, seed=1, batch=64, shuffle_window=window, bad_rows=BadRows(1 << 30)
        )


def same_batches(left: list[Batch], right: list[Batch]) -> bool:
    """Whether two lists are the same to the bit, ids and order too."""
    return len(left) == len(right) and all(
        one.id == other.id
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
        and all(getattr(one, name).dtype == getattr(other, name).dtype for name in FIELDS)
        for one, other in zip(left, right, strict=True)
    )


def examples_as_bytes(batches: list[Batch]) -> list[bytes]:
    """Each example as bytes: sorted, they are the examples as a multiset."""
    found = []
    for batch in batches:
        ends = np.cumsum(batch.bag_lengths.reshape(-1)).reshape(batch.bag_lengths.shape)
        for at in range(len(batch)):
            bags = [
                batch.bag_rows[ends[table, at] - batch.bag_lengths[table, at] : ends[table, at]].tobytes()
                + b"|"
                for table in range(len(ends))
            ]
            weight = batch.weights[at : at + 1].tobytes()
            fixed = (
                batch.labels[at : at + 1].tobytes(),
                batch.dense[at].tobytes(),
                batch.rows[:, at].tobytes(),
            )
            found.append(b"".join((*fixed, weight, *bags)))
    return found


def check_prepared(tree: Tree, folder: Path) -> tuple[list[Batch], Prepared]:
    """Prepare a job into a folder, which must give the same batches; return these, and what was made."""
    made = prepare_folder(job_of_tree(tree), folder)
    batches = list(batches_of(job_of_tree(tree)))
    assert same_batches(batches, list(batches_of(on_folder(tree, folder))))
    return batches, made
