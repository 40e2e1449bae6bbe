"""CPU seconds of the embedding nodes, by placement.

The tables are split by their rows, and by measured cost.

    python benchmarks/placement.py [--examples 200000] [--rounds 3] [--out FILE.json]

Nine tables that are unlike each other: `tags` with 20 rows an example, 16 wide; `item`, 64 wide and by far
the largest; seven of 8 floats. Ids are log-uniform. One job for each of 2 and 3 nodes and each placement,
alternating; all figures are of the coordinator's report: "CPU s" of each node while training goes on, "max /
mean" of these, and the same of the load that the plan expected and of the rows that were looked up. The
busiest node bounds how fast the others can be used, so its CPU seconds are what a placement is about.
Saved after every round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table

TAGS = 20
SMALL = tuple("abcdefg")
NODES = (2, 3)
PLACEMENTS = ("rows", "measured")


def main() -> None:
    """Write the log, run the jobs, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=200_000, help="of the log")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each job")
    parser.add_argument("--out", type=Path, default=Path("placement.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="placement-") as folder:
        log = Path(folder) / "log.parquet"
        write_log(log, options.examples)
        runs: dict[str, Callable[[], Figures]] = {
            f"{nodes} nodes, {placement}": partial(measure, log, nodes, placement)
            for nodes in NODES
            for placement in PLACEMENTS
        }
        results = alternate(runs, options.rounds, partial(keep, options.out))
    print(table(results))
    for name, value in busiest(results).items():
        print(show_ratio(name, value))


def busiest(results: Results) -> dict[str, dict[str, float]]:
    """CPU seconds of the busiest node, cost over rows.

    They are those with the tables split by cost over those with the tables split by rows.
    """
    ratios = {}
    for nodes in NODES:
        by_rows, measured = (
            [one["busiest CPU s"] for one in results[f"{nodes} nodes, {placement}"]]
            for placement in PLACEMENTS
        )
        ratios[f"{nodes} nodes, busiest, measured / rows"] = ratio(measured, by_rows)
    return ratios


def keep(out: Path, results: Results) -> None:
    """Save what there is so far."""
    save(out, "placement of tables", {"runs": results, "ratios": busiest(results)})


def write_log(path: Path, examples: int) -> None:
    """Write one Parquet file."""
    draw = np.random.default_rng(1)
    columns: dict[str, Any] = {"label": draw.integers(0, 2, examples), "x": draw.random(examples)}
    tags = _ids(draw, 50_000, examples * TAGS)
    offsets = np.arange(0, examples * TAGS + 1, TAGS, dtype=np.int32)
    columns["tags"] = pa.ListArray.from_arrays(offsets, tags)
    columns["item"] = _ids(draw, 1_000_000, examples)
    for name in SMALL:
        columns[name] = _ids(draw, 20_000, examples)
    pq.write_table(pa.table(columns), path, row_group_size=20_000)


def measure(log: Path, nodes: int, placement: str) -> Figures:
    """One job's figures."""
    report = run_job(
        {
            "data": {"format": "parquet", "path": str(log)},
            "data.columns": {
                "label": "label", "x": "dense", "tags": "multi_hot",
                **dict.fromkeys(("item", *SMALL), "categorical"),
            },
            "model": {"name": "wide_deep", "embedding_dim": 8, "table_rows": 20_000, "top": [16]},
            "tables.tags": {"rows": 50_000, "dim": 16},
            "tables.item": {"rows": 200_000, "dim": 64},
            "trainer": {"count": 1, "batch": 512},
            "sync": {"algorithm": "none"},
            "embedding": {"nodes": nodes, "placement": placement},
        }
    )  # fmt: skip
    assert report.placement is not None
    cpu = [node.cpu_seconds or 0.0 for node in report.placement.nodes]
    rows = [float(node.looked_up_rows or 0) for node in report.placement.nodes]
    expected = [node.expected_ns for node in report.placement.nodes if node.expected_ns is not None]
    return {
        **{f"CPU s {number}": seconds for number, seconds in enumerate(cpu)},
        "busiest CPU s": max(cpu),
        "CPU max / mean": _level(cpu),
        "rows max / mean": _level(rows),
        **({"expected max / mean": _level(expected)} if expected else {}),
    }


def _level(values: Sequence[float]) -> float:
    return max(values) * len(values) / sum(values) if sum(values) else 0.0


def _ids(draw: np.random.Generator, limit: int, count: int) -> NDArray[np.int32]:
    ids: NDArray[np.int32] = np.exp(draw.random(count) * np.log(limit)).astype(np.int32)
    return ids


if __name__ == "__main__":
    main()
