"""Would it save messages to keep rows together that are looked up together?

    python benchmarks/co_access.py [--criteo FILE] [--nodes 4] [--out FILE.json]

A batch costs a message to each node that has one of its rows. Three splits of the rows over the nodes: tables
(each row where its table is, tables packed by size), hashing (each row anywhere), and clusters: from the
first half of the log, each example goes to the node that has most of its rows already, as long as that node
is not fuller than SLACK times the mean, and takes the rows with it that nobody had (after the greedy rule of
Stanton and Kliot, Streaming graph partitioning, KDD 2012, on the graph of examples and rows); then each row
goes to the node of most of its examples. All are counted on the second half: the mean number of nodes that a
batch touches, and the mean share of a batch's rows that its busiest node has. "planted" is the control, a log
in which every example has rows of one of the communities only, as many as there are nodes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from shadowsync.benchmarks.pairs import save
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.generator import generate_log
from shadowsync.pipeline.data.input_plan import plan_input
from shadowsync.pipeline.data.job_input import JobInput
from shadowsync.pipeline.data.sample import UntoldRows
from shadowsync.pipeline.embedding.plan import TablePlan

BATCHES = (1, 2, 8, 32, 128, 512, 2048)
EXAMPLES = 40_000
SLACK = 1.1

Nodes = NDArray[np.int8]
Rows = NDArray[np.int64]


def main() -> None:
    """Counts, prints a table a log, writes the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--criteo", help="a log in Criteo's text format")
    parser.add_argument("--nodes", type=int, default=4, help="embedding nodes")
    parser.add_argument("--out", type=Path, help="where to write the figures, JSON")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="co-access-") as folder:
        generate_log(
            Path(folder), examples=EXAMPLES, eval_examples=1000, seed=1, data_format="parquet", files=1
        )
        logs = {"generated": ("parquet", f"{folder}/train-*.parquet")}
        if options.criteo:
            logs["Criteo"] = ("criteo_tsv", options.criteo)
        for name, (data_format, path) in logs.items():
            job = job_of(data_format, path)
            results[name] = measure(name, read_rows(job), job, options.nodes)
    results["planted"] = measure("planted", planted(job, options.nodes), job, options.nodes)
    if options.out:
        save(options.out, "messages a batch by split of the rows", results)


def job_of(data_format: str, path: str) -> Job:
    """26 tables of 100,000 rows."""
    return Job.model_validate(
        {"data": {"format": data_format, "path": [path]}, "model": {"table_rows": 100_000}}
    )


def planted(job: Job, nodes: int) -> Rows:
    """int64 [T, N]: each example's rows are of its community."""
    draw = np.random.default_rng(3)
    community = draw.integers(0, nodes, EXAMPLES)
    each = min(job.table_rows) // nodes
    own = np.exp(draw.random((len(job.tables), EXAMPLES)) * np.log(min(each, 2000))).astype(np.int64)
    rows: Rows = own + community * each
    return rows


def measure(name: str, rows: Rows, job: Job, nodes: int) -> dict[str, dict[str, list[float]]]:
    """By the split, what batches of each size touch; `rows` are int64 [T, N]."""
    # Rows of all tables in one numbering.
    starts = np.cumsum([0, *job.table_rows[:-1]])
    rows = rows + starts[:, None]
    half = rows.shape[1] // 2
    total = sum(job.table_rows)
    splits: dict[str, Callable[[], Nodes]] = {
        "tables": lambda: by_table(job, nodes),
        "hashing": lambda: np.random.default_rng(1).integers(0, nodes, total).astype(np.int8),
        "clusters": lambda: by_clusters(rows[:, :half], total, nodes),
    }
    print(f"{name}: {half:,} examples counted, {rows.shape[0]} tables, {nodes} nodes")
    print("| split | batch | " + " | ".join(map(str, BATCHES)) + " |")
    found: dict[str, dict[str, list[float]]] = {}
    for split, make in splits.items():
        touched, busiest = count(make()[rows[:, half:]], nodes)
        found[split] = {"touched": touched, "busiest share": busiest}
        print(f"| {split} | nodes touched | " + " | ".join(f"{value:.3f}" for value in touched) + " |")
        print(f"| {split} | share of the busiest | " + " | ".join(f"{value:.3f}" for value in busiest) + " |")
    return found


def read_rows(job: Job) -> Rows:
    """int64 [T, N], the rows of each table."""
    source, parts, read = JobInput(job), [], 0
    for span in plan_input(job).train:
        for batch in source.batches(
            span, epoch=0, seed=1, batch=4096, shuffle_window=65_536, bad_rows=UntoldRows()
        ):
            parts.append(batch.rows)
            read += len(batch)
            if read >= EXAMPLES:
                return np.concatenate(parts, axis=1).astype(np.int64)
    return np.concatenate(parts, axis=1).astype(np.int64)


def by_table(job: Job, nodes: int) -> Nodes:
    """The node of each row under a plan of whole tables, where that can be."""
    plan = TablePlan.make(job.tables, nodes)
    starts = np.cumsum([0, *job.table_rows[:-1]])
    found = np.zeros(sum(job.table_rows), np.int8)
    for piece in plan.pieces:
        found[starts[piece.table] + piece.start : starts[piece.table] + piece.stop] = piece.node
    return found


def by_clusters(rows: Rows, total: int, nodes: int) -> Nodes:
    """The node of each row, from the examples in `rows`; rows that none has are dealt at random."""
    home = np.full(total, -1, np.int8)
    held = np.zeros(nodes)
    examples = np.zeros(rows.shape[1], np.int8)
    for number in range(rows.shape[1]):
        own = rows[:, number]
        known = home[own]
        votes = np.bincount(known[known >= 0], minlength=nodes).astype(float)
        votes[held > SLACK * max(held.mean(), 100.0)] = -1.0
        node = int(np.argmax(votes - held / (held.sum() + 1)))
        examples[number] = node
        new = own[known < 0]
        home[new] = node
        held[node] += len(new)
    # Each row to where most of its examples are: what was taken early may be in the wrong place.
    uses = np.zeros((nodes, total), np.int32)
    for node in range(nodes):
        np.add.at(uses[node], rows[:, examples == node].ravel(), 1)
    seen = home >= 0
    home[seen] = uses[:, seen].argmax(axis=0).astype(np.int8)
    home[~seen] = np.random.default_rng(2).integers(0, nodes, int((~seen).sum())).astype(np.int8)
    return home


def count(home: NDArray[np.int8], nodes: int) -> tuple[list[float], list[float]]:
    """For each of BATCHES: nodes that a batch touches, and its busiest node's share of its rows.

    Args:
        home: [T, N], the node of each looked-up row.
    """
    per_example = np.stack([(home == node).sum(axis=0) for node in range(nodes)])
    touched, busiest = [], []
    for batch in BATCHES:
        whole = per_example.shape[1] // batch * batch
        sums = per_example[:, :whole].reshape(nodes, -1, batch).sum(axis=2)
        touched.append(float((sums > 0).sum(axis=0).mean()))
        busiest.append(float((sums.max(axis=0) / sums.sum(axis=0)).mean()))
    return touched, busiest


if __name__ == "__main__":
    main()
