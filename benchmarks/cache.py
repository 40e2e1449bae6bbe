"""Hot rows on the trainer: the same job with and without copies of them, over seeds.

    python benchmarks/cache.py --examples 500000 --seeds 5

Each line is one way to look rows up: every row of a batch, each distinct one, and with copies of several
bounds of their staleness. What it says: NE on held-out examples, the share of a batch's distinct rows that a
copy served, the bytes that this spared, the staleness that the nodes measured, and CPU seconds per million
examples of all nodes together. Saved after every seed.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import on_log, run_job
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table
from shadowsync.pipeline.data.generator import generate_log

PLAIN = "every row"


def job(log: Path, seed: int, trainer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Two trainers over two embedding nodes; `trainer` has what the way of looking up is."""
    return {
        **on_log(log, seed),
        "model": {"embedding_dim": 16, "table_rows": 50_000, "bottom": [64], "top": [64]},
        "trainer": {"count": 2, "batch": 512, "optimizer": "adagrad", "lr": 0.01, **trainer},
        "embedding": {"nodes": 2, "optimizer": "rowwise_adagrad", "lr": 0.02},
        "sync": {"algorithm": "easgd", "nodes": 1},
    }


def ways(cache_rows: int, bounds: list[int]) -> dict[str, dict[str, Any]]:
    """By name, what each has in the job's section on trainers."""
    return {
        PLAIN: {},
        "distinct rows": {"distinct_rows": True},
        **{
            f"copies, at most {bound} pushes older": {"cache_rows": cache_rows, "cache_staleness": bound}
            for bound in bounds
        },
    }


def measure(log: Path, seed: int, trainer: dict[str, Any]) -> Figures:
    """One run to its end."""
    report = run_job(job(log, seed, trainer))
    cache = report.row_cache
    figures = {
        "held-out NE": (report.eval.ne if report.eval is not None else None) or float("nan"),
        "NE in training": report.train.ne_progressive or float("nan"),
        "staleness mean": report.staleness.embedding_mean or 0.0,
        "staleness most": report.staleness.embedding_max or 0.0,
        "CPU s per million": report.throughput.cpu_seconds_per_million or float("nan"),
    }
    if cache is not None:
        figures["hit rate"] = cache.hit_rate or 0.0
        figures["MB spared"] = cache.spared_bytes / 1e6
    return figures


def over_every_row(results: Results) -> dict[str, dict[str, float]]:
    """NE and CPU of each way over those of looking every row up, in pairs of one seed."""
    first = results[PLAIN]
    return {
        f"{name} over {PLAIN}, {figure}": ratio([run[figure] for run in own], [run[figure] for run in first])
        for name, own in results.items()
        if name != PLAIN
        for figure in ("held-out NE", "CPU s per million")
    }


def keep(out: Path, results: Results) -> None:
    """Saves what there is so far."""
    save(out, "hot rows on the trainer", {"runs": results, "ratios": over_every_row(results)})


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache-rows", type=int, default=100_000)
    parser.add_argument("--bounds", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--out", type=Path, default=Path("cache.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        log = Path(folder)
        held_out = options.examples // 5
        generate_log(log, examples=options.examples, eval_examples=held_out, seed=1, data_format="parquet")
        seeds = {name: iter(range(1, options.seeds + 1)) for name in ways(options.cache_rows, options.bounds)}

        def runner(name: str, trainer: dict[str, Any]) -> Any:
            return lambda: measure(log, next(seeds[name]), trainer)

        runs = {name: runner(name, own) for name, own in ways(options.cache_rows, options.bounds).items()}
        results = alternate(runs, options.seeds, partial(keep, options.out))
    print(table(results))
    for name, value in over_every_row(results).items():
        print(show_ratio(name, value))


if __name__ == "__main__":
    main()
