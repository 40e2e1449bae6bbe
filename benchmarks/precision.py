"""What bfloat16 products cost in quality: the same jobs in float32 and bfloat16, over seeds, in pairs.

    SHADOWSYNC_DATA=DIR python benchmarks/precision.py --out docs/results/precision.json

Two trainers under shadow EASGD with the defaults: MovieLens by time, scored progressively in its last fifth,
and a generated log of a million examples, on which the model that comes out is scored on held-out ones; with
`--trainers 1` that of one trainer, which does not synchronize, so that only the rounding differs. Both
runs of a pair have the same seed; the order in a pair alternates. The control is float32 with learning rates
ten times lower, which must be told apart from float32. Pushes come later on a machine that does other work
too, for both of a pair alike. What is there so far is saved after every seed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import on_log, run_job
from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.benchmarks.real_data import TASKS
from shadowsync.benchmarks.real_data import figures as real_figures
from shadowsync.lab.statistics import paired_difference
from shadowsync.pipeline.data.generator.generator import generate_log

PRECISIONS = ("float32", "bfloat16")
CONTROL = "float32, rates a tenth"
Run = Callable[[int, dict[str, Any]], Figures]
Results = dict[str, list[Figures]]


def on_movielens(data: Path) -> Run:
    """One run on MovieLens; the rates of its job file are the reference of the control."""

    def run(seed: int, trainer: dict[str, Any]) -> Figures:
        task = TASKS["movielens"]
        lower = trainer.get("tenth")
        rates = ("trainer.lr=0.005", "embedding.lr=0.01") if lower else ()
        return real_figures(task, data, seed, (f"trainer.precision={trainer['precision']}", *rates))

    return run


def on_generated(log: Path, trainers: int) -> Run:
    """One run on a generated log, with the defaults; one trainer alone does not synchronize."""

    def run(seed: int, trainer: dict[str, Any]) -> Figures:
        sections = on_log(log, seed)
        sections["trainer"] = {"count": trainers, "precision": trainer["precision"]}
        if trainers == 1:
            sections["sync"] = {"algorithm": "none"}
        if trainer.get("tenth"):
            sections["trainer"]["lr"], sections["embedding"] = 0.001, {"lr": 0.002}
        report = run_job(sections)
        assert report.eval is not None
        assert report.eval.ne is not None
        found = {"ne": report.eval.ne, "auc": report.eval.auc or 0.0}
        found["staleness_mean"] = report.staleness.embedding_mean or 0.0
        found["gap_mean"] = report.sync.gap_mean or 0.0
        return found | {"examples_per_second": report.throughput.examples_per_second or 0.0}

    return run


def verdict(results: Results) -> dict[str, Any]:
    """Of each precision mean and standard deviation of NE; and the differences to float32, in pairs."""
    found: dict[str, Any] = {}
    for name, rows in results.items():
        ne = [row["ne"] for row in rows]
        found[name] = {"ne_mean": statistics.mean(ne), "ne_spread": statistics.stdev(ne) if ne[1:] else None}
    exact = [row["ne"] for row in results["float32"]]
    for name in results:
        if name != "float32":
            ne = [row["ne"] for row in results[name]]
            found[f"NE of {name} minus float32"] = paired_difference(ne, exact[: len(ne)]).model_dump()
    return found


def measure(task: str, run: Run, seeds: int, out: Path, parts: dict[str, Any]) -> None:
    """All seeds of one task; `parts` of all tasks are saved after each."""
    results: Results = {}
    for seed in range(1, seeds + 1):
        for precision in PRECISIONS if seed % 2 else PRECISIONS[::-1]:
            results.setdefault(precision, []).append(run(seed, {"precision": precision}))
        if seed <= 2:
            results.setdefault(CONTROL, []).append(run(seed, {"precision": "float32", "tenth": True}))
        for name, rows in results.items():
            print(f"{task}, seed {seed}  {name:24} {rows[-1]}", flush=True)
        parts[task] = {"verdict": verdict(results), "runs": results}
        save(out, "quality by precision", parts)
    print(table(results))
    for what, value in parts[task]["verdict"].items():
        print(f"{task}: {what}: {value}", flush=True)


def main() -> None:
    """Runs, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--tasks", nargs="+", default=["movielens", "generated"])
    parser.add_argument(
        "--trainers", type=int, default=2, help="of the generated log; 1 does not synchronize"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    parts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="log-") as folder:
        for task in given.tasks:
            if task == "movielens":
                run = on_movielens(Path(os.environ["SHADOWSYNC_DATA"]))
            else:
                log = Path(folder)
                generate_log(
                    log,
                    examples=given.examples,
                    eval_examples=given.examples // 5,
                    seed=7,
                    data_format="parquet",
                )
                run = on_generated(log, given.trainers)
            measure(task, run, given.seeds, given.out, parts)


if __name__ == "__main__":
    main()
