"""What training loses by checkpoints and validations beside it.

    python benchmarks/speed/background_work.py --rounds 4 --out benchmarks/speed/results/background_work.json

Each round runs the job three times in alternation: without checkpoints and validations ("alone"), with both
("low"), and, as the control, with both at the priority of training ("normal"). A checkpoint is taken every
--every-seconds and scored on the held-out examples. Examples/s are from the first to the last trained batch,
so that they have what training lost and not the end of the job; CPU seconds are those of all processes.
Ratios are paired by round, to "alone". The goal is at most 5% lost: 0.95.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import Sections, log_or_generated, on_log, run_job
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table

ALONE: Final = "alone"
WAYS: Final = {ALONE: None, "low": "low", "normal": "normal"}
COMPARED: Final = ("examples_per_second", "cpu_seconds_per_million")


def sections(log: Path, given: argparse.Namespace, priority: str | None) -> Sections:
    """Return a job of two trainers; with a priority it has work beside training."""
    job = on_log(log, seed=1)
    job |= {
        "model": {"embedding_dim": 16, "table_rows": given.table_rows},
        "trainer": {"count": 2, "batch": 512},
        "embedding": {"nodes": 2},
        "sync": {"algorithm": "easgd", "nodes": 1},
        "checkpoint": {"every_seconds": given.every_seconds if priority else 0.0},
        "report": {"pictures": False},
    }
    held_out = job["data"].pop("eval_path")
    if priority:
        job["run"]["background_priority"] = priority
        job["data"]["validation_path"] = held_out
        job["validation"] = {"every_seconds": given.every_seconds}
    return job


def measured(log: Path, given: argparse.Namespace, priority: str | None) -> Figures:
    """Run one job; return its figures."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = run_job(sections(log, given, priority))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert report.ledger.adds_up
    validation, checkpoints = report.validation, report.checkpoints
    return {
        "examples_per_second": report.throughput.examples_per_second or 0.0,
        "cpu_seconds_per_million": report.throughput.cpu_seconds_per_million or 0.0,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "checkpoints": float(checkpoints.written) if checkpoints else 0.0,
        # The last one is scored when nobody trains any more.
        "validations": float(validation.count - 1) if validation else 0.0,
        "skipped": float(validation.skipped) if validation else 0.0,
    }


def main() -> None:
    """Run the rounds, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--examples", type=int, default=1_000_000, help="of the log, if it is generated")
    parser.add_argument("--held-out", type=int, default=100_000, help="of the log, if it is generated")
    parser.add_argument("--table-rows", type=int, default=20_000)
    parser.add_argument("--every-seconds", type=float, default=4.0)
    parser.add_argument("--log", type=Path, help="a folder of `shadowsync generate demo-data`")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(given).items()}}
    with log_or_generated(given.log, given.examples, given.held_out) as log:
        ways: dict[str, Callable[[], Figures]] = {
            name: partial(measured, log.absolute(), given, way) for name, way in WAYS.items()
        }
        results = found["runs"] = alternate(ways, given.rounds)
    print(table(results))
    found["over alone"] = {
        name: {
            figure: ratio([run[figure] for run in results[name]], [run[figure] for run in results[ALONE]])
            for figure in COMPARED
        }
        for name in ways
        if name != ALONE
    }
    for name, ratios in found["over alone"].items():
        for figure, value in ratios.items():
            print(show_ratio(f"{name} over {ALONE}, {figure}", value))
    save(given.out, "checkpoints and validations beside training", found)


if __name__ == "__main__":
    main()
