"""Quality on real data against logistic regression.

Two trainers run under shadow EASGD, over seeds.

    SHADOWSYNC_DATA=DIR python benchmarks/real_data.py --out docs/results/real_data.json

MovieLens by time is scored progressively, in its last fifth, by the replica that trains the batch, before its
step; Adult by its own test file. `--kinds process` makes the workers processes; the same seeds, so that the
two are compared in pairs. The floors are what one pass of an AdaGrad logistic regression gets on the same
fields and rows. The control is the same job with learning rates near nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.lab.statistics import paired_difference
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.report.write import read_report

ROOT = Path(__file__).resolve().parents[1]
UNTRAINED = ("trainer.lr=1e-9", "embedding.lr=1e-9")


@dataclass(frozen=True)
class Task:
    """One data set.

    It has its job file, its files, and what logistic regression gets.
    """

    job: str
    files: dict[str, str]
    progressive: bool
    floor_auc: float
    floor_ne: float


TASKS = {
    "movielens": Task("movielens.toml", {"data.path": "ml-100k.inter.gz"}, True, 0.7362, 0.886),
    "adult": Task(
        "adult.toml", {"data.path": "adult.data.gz", "data.eval_path": "adult.test.gz"}, False, 0.9143, 0.554
    ),
}


def run_example(job: str, overrides: list[str]) -> Report:
    """Run an example's job file once.

    Raises RuntimeError if it does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        command = [sys.executable, "-m", "shadowsync.cli", "run", str(ROOT / "examples" / job), "--quiet"]
        for override in (*overrides, f"run.directory={folder}", "run.start_timeout_seconds=180.0"):
            command += ["--set", override]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")
        return read_report(Path(folder) / "latest" / "report.json")


def figures(task: Task, data: Path, seed: int, overrides: tuple[str, ...]) -> Figures:
    """AUC and NE of one run.

    Also how far its trainers were apart.
    """
    files = [f"{key}={data / name}" for key, name in task.files.items()]
    two = ["trainer.count=2", "sync.algorithm=easgd", "sync.mode=shadow", f"run.seed={seed}"]
    report = run_example(task.job, [*files, *two, *overrides])
    score = report.train.progressive if task.progressive else report.eval
    assert score is not None
    assert score.auc is not None
    assert score.ne is not None
    found = {"auc": score.auc, "ne": score.ne, "examples": float(score.examples)}
    found["gap_mean"] = report.sync.gap_mean or 0.0
    found["divergence"] = report.replicas.divergence or 0.0
    found["examples_per_second"] = report.throughput.examples_per_second or 0.0
    return found


def verdict(task: Task, rows: list[Figures]) -> Figures:
    """How far the quality is above the floor.

    Also that in units of the spread over seeds.
    """
    auc, ne = [row["auc"] for row in rows], [row["ne"] for row in rows]
    spread_auc, spread_ne = statistics.stdev(auc), statistics.stdev(ne)
    above, below = statistics.mean(auc) - task.floor_auc, task.floor_ne - statistics.mean(ne)
    return {
        "auc_mean": statistics.mean(auc),
        "auc_spread": spread_auc,
        "auc_above_floor": above,
        "auc_above_floor_in_spreads": above / spread_auc,
        "ne_mean": statistics.mean(ne),
        "ne_spread": spread_ne,
        "ne_below_floor": below,
        "ne_below_floor_in_spreads": below / spread_ne,
    }


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--kinds", nargs="+", default=["thread", "process"])
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    data = Path(os.environ["SHADOWSYNC_DATA"])
    results: dict[str, list[Figures]] = {}
    for seed in range(1, given.seeds + 1):
        for name in given.tasks:
            cells: dict[str, tuple[str, ...]] = {
                f"{name}, {kind}": (f"trainer.worker_kind={kind}",) for kind in given.kinds
            }
            if seed == 1:
                cells[f"{name}, untrained"] = UNTRAINED
            for cell, own in cells.items():
                row = figures(TASKS[name], data, seed, (*given.overrides, *own))
                results.setdefault(cell, []).append(row)
                print(f"seed {seed}  {cell:24} {row}", flush=True)
    print(table(results))
    verdicts: dict[str, object] = {}
    for name in given.tasks:
        of_kind = {kind: results[f"{name}, {kind}"] for kind in given.kinds}
        for kind, rows in of_kind.items():
            found = verdict(TASKS[name], rows)
            verdicts[f"{name}, {kind}"] = found
            print(f"{name}, {kind}: " + ", ".join(f"{key} {value:.4f}" for key, value in found.items()))
        if len(of_kind) == 2:
            one, other = of_kind.values()
            apart = paired_difference([row["ne"] for row in other], [row["ne"] for row in one])
            verdicts[f"{name}: NE of {given.kinds[1]} minus {given.kinds[0]}"] = apart.model_dump()
            print(f"{name}: NE of {given.kinds[1]} minus {given.kinds[0]}: {apart}")
    save(given.out, "quality on real data, 2 trainers, shadow EASGD", {"verdict": verdicts, "runs": results})


if __name__ == "__main__":
    main()
