"""What synchronization does to quality, on a generated log with a planted teacher.

    python benchmarks/quality.py --seeds 3 --out docs/results/quality.json

Three questions: how much of the teacher's gain one trainer gets in one pass; whether two trainers under
shadow EASGD get as much; and, as the control that the measure has power, whether many trainers that never
synchronize are worse than the same under EASGD.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import run_job
from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.pipeline.data.generator import generate_log


def sections(
    log: Path, seed: int, trainers: int, sync: dict[str, Any], rows: int
) -> dict[str, dict[str, Any]]:
    """The job: one pass over the log, workers of one thread each."""
    return {
        "run": {"seed": seed, "node_timeout_seconds": 60.0, "start_timeout_seconds": 180.0},
        "data": {
            "format": "parquet",
            "path": str(log / "train-*.parquet"),
            "eval_path": str(log / "eval-*.parquet"),
        },
        "model": {"table_rows": rows},
        "trainer": {"count": trainers, "workers": 1, "batch": 512, "optimizer": "adagrad", "lr": 0.01},
        "embedding": {"nodes": 2, "optimizer": "rowwise_adagrad", "lr": 0.02},
        "sync": sync,
    }


def figures(log: Path, seed: int, trainers: int, sync: dict[str, Any], rows: int) -> Figures:
    """One run: NE, gain ratio and AUC of the model that comes out, and how it was synchronized."""
    report = run_job(sections(log, seed, trainers, sync, rows))
    assert report.eval is not None
    assert report.eval.ne is not None
    assert report.eval.gain_ratio is not None
    values = {"ne": report.eval.ne, "gain_ratio": report.eval.gain_ratio, "auc": report.eval.auc or 0.0}
    values["ne_progressive"] = report.train.ne_progressive or 0.0
    values["examples_per_second"] = report.throughput.examples_per_second or 0.0
    if report.sync.gap_mean is not None:
        values["gap_mean"] = report.sync.gap_mean
    if report.replicas.divergence is not None:
        values["divergence"] = report.replicas.divergence
    return values


def main() -> None:
    """Runs every cell with every seed, the cells in alternation, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2_000_000)
    parser.add_argument("--control-examples", type=int, default=1_000_000)
    parser.add_argument("--control-trainers", type=int, default=8)
    parser.add_argument("--table-rows", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("quality.json"))
    given = parser.parse_args()
    easgd: dict[str, Any] = {"algorithm": "easgd"}
    many = given.control_trainers
    cells: dict[str, tuple[int, int, dict[str, Any]]] = {
        "1 trainer": (given.examples, 1, {"algorithm": "none"}),
        "2 trainers, shadow easgd": (given.examples, 2, easgd),
        f"{many} trainers, none": (given.control_examples, many, {"algorithm": "none"}),
        f"{many} trainers, shadow easgd": (given.control_examples, many, easgd),
    }
    results: dict[str, list[Figures]] = {name: [] for name in cells}
    for seed in range(1, given.seeds + 1):
        for name, (examples, trainers, sync) in cells.items():
            log = given.data / f"log-{examples}-{seed}"
            generate_log(
                log, examples=examples, eval_examples=100_000, seed=seed, data_format="parquet", reuse=True
            )
            results[name].append(figures(log, seed, trainers, sync, given.table_rows))
            print(f"seed {seed}  {name:28} {results[name][-1]}", flush=True)
    print(table(results))
    save(given.out, "quality on the generated log", {"runs": results, "verdicts": verdicts(results, many)})


def verdicts(results: dict[str, list[Figures]], many: int) -> dict[str, float]:
    """The figures that the goals are about; prints them."""

    def column(name: str, key: str) -> list[float]:
        return [row[key] for row in results[name]]

    one, two = column("1 trainer", "gain_ratio"), column("2 trainers, shadow easgd", "gain_ratio")
    apart = column(f"{many} trainers, none", "ne")
    together = column(f"{many} trainers, shadow easgd", "ne")
    worse = [a - b for a, b in zip(apart, together, strict=True)]
    spread = max(statistics.stdev(apart), statistics.stdev(together)) if len(apart) > 1 else 0.0
    values = {
        "gain_ratio_1_trainer": statistics.mean(one),
        "gain_ratio_2_over_1": statistics.mean(b / a for a, b in zip(one, two, strict=True)),
        "control_ne_difference": statistics.mean(worse),
        "control_ne_spread": spread,
        "control_difference_over_spread": statistics.mean(worse) / spread if spread else 0.0,
    }
    for name, value in values.items():
        print(f"{name}: {value:.5f}")
    return values


if __name__ == "__main__":
    main()
