"""Speed of a job whose item and history share a table, beside one with two tables.

    python benchmarks/speed/nodes/shared_tables.py --out benchmarks/speed/results/shared_tables.json

The log is drawn: users, items with frequencies as in a click log, and histories of up to 20 of these items. A
pair is a job with one table and one with two of the same settings, one right after the other, in alternating
order: with the history summed by the embedding nodes (`dcn_v2`), and as a sequence (`din`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table

EXAMPLES: Final = 400_000
ITEMS: Final = 50_000
LONGEST: Final = 20
FIGURES = ("cpu_seconds_per_million", "examples_per_second")
MODELS: Final[dict[str, dict[str, Any]]] = {
    "history summed": {"name": "dcn_v2"},
    "history as a sequence": {"name": "din", "attention": {"history": "item"}},
}
TABLES: Final = {"one table": "item", "two tables": ""}


def write_log(path: Path, examples: int, seed: int = 1) -> Path:
    """Draw examples."""
    draw = np.random.default_rng(seed)

    def items(count: int) -> Any:
        return draw.zipf(1.2, count) % ITEMS

    lengths = draw.integers(0, LONGEST + 1, examples)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items(int(offsets[-1]))))
    columns = {
        "clicked": draw.integers(0, 2, examples),
        "user": draw.integers(0, 20_000, examples),
        "item": items(examples),
        "history": history,
        "price": draw.random(examples),
    }
    pq.write_table(pa.table(columns), path, row_group_size=50_000)
    return path


def sections(log: Path, kind: str, model: str, history_table: str) -> dict[str, dict[str, Any]]:
    """Return a job of one trainer and one embedding node."""
    pooling = "none" if model == "history as a sequence" else "sum"
    history = {"kind": "multi_hot", "pooling": pooling, "max_ids": LONGEST, "table": history_table}
    columns = {"clicked": "label", "user": "categorical", "item": "categorical", "price": "dense"}
    return {
        "run": {"seed": 1, "node_timeout_seconds": 60.0, "start_timeout_seconds": 180.0},
        "data": {"format": "parquet", "path": str(log), "columns": columns | {"history": history}},
        "model": MODELS[model]
        | {"embedding_dim": 16, "table_rows": 100_000, "table_kind": kind, "top": [64]},
        "trainer": {"count": 1, "batch": 256},
        "sync": {"algorithm": "none"},
        "report": {"pictures": False},
    }


def measured(log: Path, kind: str, model: str, history_table: str) -> Figures:
    """Run one job; return its figures."""
    report = run_job(sections(log, kind, model, history_table))
    assert report.ledger.adds_up
    figures = {name: getattr(report.throughput, name) for name in FIGURES}
    assert None not in figures.values()
    return figures


def ratios_of(results: Results) -> dict[str, dict[str, float]]:
    """Compare the jobs of each pair: one table over two."""
    found = {}
    for name in sorted({name.rpartition(", ")[0] for name in results}):
        for figure in FIGURES:
            one, two = ([row[figure] for row in results[f"{name}, {how}"]] for how in TABLES)
            found[f"{name}: {figure}, one table over two"] = ratio(one, two)
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=("hashed", "growing"), default=["hashed", "growing"])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shared-tables-") as folder:
        log = write_log(Path(folder) / "log.parquet", given.examples)
        runs: dict[str, Callable[[], Figures]] = {
            f"{model}, {kind}, {how}": partial(measured, log, kind, model, history_table)
            for kind in given.kinds
            for model in MODELS
            for how, history_table in TABLES.items()
        }

        def keep(results: Results) -> None:
            save(given.out, __doc__ or "", {"runs": results, "ratios": ratios_of(results)})

        results = alternate(runs, given.rounds, keep)
    print(table(results))
    for name, value in ratios_of(results).items():
        print(show_ratio(name, value))


if __name__ == "__main__":
    main()
