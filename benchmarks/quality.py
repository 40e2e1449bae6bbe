"""What synchronization does to quality.

The log is generated, with a planted teacher.

    python benchmarks/quality.py gain --out docs/results/quality_gain.json
    python benchmarks/quality.py control --out docs/results/quality_control.json

`gain`: how much of the teacher's gain one trainer gets in one pass, and whether two trainers under shadow
EASGD get as much. `control`, that the measure has power: many trainers that never synchronize must be worse
than the same under EASGD.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import on_log, run_job
from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.pipeline.data.generator.generator import generate_log


@dataclass(frozen=True)
class Cell:
    """One kind of run."""

    trainers: int
    batch: int
    sync: dict[str, Any]


def sections(log: Path, seed: int, cell: Cell, rows: int) -> dict[str, dict[str, Any]]:
    """The job: one pass over the log, trainers of one worker each."""
    return {
        **on_log(log, seed),
        "model": {"table_rows": rows},
        "trainer": {
            "count": cell.trainers,
            "workers": 1,
            "batch": cell.batch,
            "optimizer": "adagrad",
            "lr": 0.01,
        },
        "embedding": {"nodes": 2, "optimizer": "rowwise_adagrad", "lr": 0.02},
        "sync": {key: value for key, value in cell.sync.items() if key not in ("options", "codecs")},
        **({"sync.options": cell.sync["options"]} if "options" in cell.sync else {}),
        **({"codecs": cell.sync["codecs"]} if "codecs" in cell.sync else {}),
    }


def figures(log: Path, seed: int, cell: Cell, rows: int) -> Figures:
    """Figures of one run.

    They are NE, gain ratio and AUC of the model that comes out, and how it was synchronized.
    """
    report = run_job(sections(log, seed, cell, rows))
    assert report.eval is not None
    assert report.eval.ne is not None
    assert report.eval.gain_ratio is not None
    values = {"ne": report.eval.ne, "gain_ratio": report.eval.gain_ratio, "auc": report.eval.auc or 0.0}
    values["ne_progressive"] = report.train.ne_progressive or 0.0
    values["examples_per_second"] = report.throughput.examples_per_second or 0.0
    if report.sync.gap_mean is not None:
        values["gap_mean"] = report.sync.gap_mean
        values["gap_max"] = float(report.sync.gap_max or 0)
        values["sync_bytes"] = float(report.sync.bytes)
        values["rounds"] = float(report.sync.rounds)
    values["cpu_seconds_per_million"] = report.throughput.cpu_seconds_per_million or 0.0
    if report.replicas.divergence is not None:
        values["divergence"] = report.replicas.divergence
    return values


def measure(
    cells: dict[str, Cell], seeds: int, examples: int, rows: int, data: Path, log_seed: int | None
) -> dict[str, list[Figures]]:
    """Every cell with every seed of the job, the cells in alternation.

    The log is that of `log_seed`, or of the job's seed without one.
    """
    results: dict[str, list[Figures]] = {name: [] for name in cells}
    for seed in range(1, seeds + 1):
        of_log = seed if log_seed is None else log_seed
        log = data / f"log-{examples}-{of_log}"
        generate_log(
            log, examples=examples, eval_examples=100_000, seed=of_log, data_format="parquet", reuse=True
        )
        for name, cell in cells.items():
            results[name].append(figures(log, seed, cell, rows))
            print(f"seed {seed}  {name:28} {results[name][-1]}", flush=True)
    return results


def gain_verdict(one: list[Figures], two: list[Figures]) -> Figures:
    """One trainer's gain ratio, and two trainers' over it, paired by seed."""
    return {
        "gain_ratio_1_trainer": statistics.mean(row["gain_ratio"] for row in one),
        "gain_ratio_2_over_1": statistics.mean(
            b["gain_ratio"] / a["gain_ratio"] for a, b in zip(one, two, strict=True)
        ),
    }


def control_verdict(apart: list[Figures], together: list[Figures]) -> Figures:
    """How much worse `none` is.

    Also that in units of the larger spread over seeds.
    """
    worse = statistics.mean(a["ne"] - b["ne"] for a, b in zip(apart, together, strict=True))
    spread = max(statistics.stdev(row["ne"] for row in rows) for rows in (apart, together))
    return {"ne_difference": worse, "ne_spread": spread, "difference_over_spread": worse / spread}


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=["gain", "control"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, help="default: 2,000,000 for gain, 500,000 for control")
    parser.add_argument("--trainers", type=int, default=8, help="of the control")
    parser.add_argument("--batch", type=int, help="default: 512 for gain, 64 for control")
    parser.add_argument("--table-rows", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gain = given.question == "gain"
    batch = given.batch or (512 if gain else 64)
    examples = given.examples or (2_000_000 if gain else 500_000)
    if gain:
        cells = {
            "1 trainer": Cell(1, batch, {"algorithm": "none"}),
            "2 trainers, shadow easgd": Cell(2, batch, {"algorithm": "easgd"}),
        }
    else:
        cells = {
            f"{given.trainers} trainers, none": Cell(given.trainers, batch, {"algorithm": "none"}),
            f"{given.trainers} trainers, easgd": Cell(given.trainers, batch, {"algorithm": "easgd"}),
        }
    # One log for the control, since the spread over logs is that of their teachers, not of training.
    log_seed = None if gain else 1
    results = measure(cells, given.seeds, examples, given.table_rows, given.data, log_seed)
    first, second = results.values()
    verdict = gain_verdict(first, second) if gain else control_verdict(first, second)
    print(table(results))
    for name, value in verdict.items():
        print(f"{name}: {value:.5f}")
    what = f"quality on the generated log: {given.question}, {examples} examples, batch {batch}"
    save(given.out, what, {"verdict": verdict, "runs": results})


if __name__ == "__main__":
    main()
