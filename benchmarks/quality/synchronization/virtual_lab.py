"""The virtual lab beside real runs: NE and sync gap of the same settings.

    python benchmarks/quality/synchronization/virtual_lab.py --job examples/demo.toml --runs 5 \\
        --out benchmarks/quality/results/virtual_lab.json

Each setting of SETTINGS is run for real with the seeds 1 to RUNS. Settings that are in the file already are
not run again. The lab is given the times that the reports state: seconds of a step from examples/s, seconds
and CPU seconds of a round. It is given neither a gap nor an NE. The control is the lab with half as many
trainers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs, run_job_file
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.document import Report

EVERY_TEN = ("sync.mode=fixed", "sync.every=10")
SETTINGS: dict[str, tuple[str, ...]] = {
    "none, 1 trainer": ("trainer.count=1", "sync.algorithm=none"),
    "easgd, 2 trainers": ("trainer.count=2", "sync.algorithm=easgd"),
    "easgd, 4 trainers": ("trainer.count=4", "sync.algorithm=easgd"),
    "ma, 2 trainers": ("trainer.count=2", "sync.algorithm=ma"),
    "easgd every 10, 4 trainers": ("trainer.count=4", "sync.algorithm=easgd", *EVERY_TEN),
    "ma every 10, 4 trainers": ("trainer.count=4", "sync.algorithm=ma", *EVERY_TEN),
}


def timing_of(reports: list[Report], trainers: int, workers: int, batch: int) -> Timing:
    """Return the times in the reports, as means over the runs."""
    speed = statistics.fmean(report.throughput.examples_per_second or 0.0 for report in reports)
    given = {"step_seconds": batch * trainers * workers / speed}
    if all(report.sync.rounds for report in reports):
        cpu = statistics.fmean(report.sync.cpu_seconds_mean or 0.0 for report in reports)
        given["round_cpu_seconds"] = cpu
        given["round_seconds"] = statistics.fmean(report.sync.seconds_mean or 0.0 for report in reports)
        given["center_seconds"] = 0.0
    return Timing.model_validate(given)


def emulated(job: Path, overrides: tuple[str, ...], runs: int, timing: Timing) -> dict[str, Any]:
    """Emulate a setting with the same seeds."""
    settings = [(*overrides, f"run.seed={seed}") for seed in range(1, runs + 1)]
    results = [run_virtual(load_job(str(job), one), timing) for one in settings]
    gaps = [result.gap_mean for result in results if result.gap_mean is not None]
    return {
        "ne": [result.ne for result in results],
        "gap": statistics.fmean(gaps) if gaps else None,
        "staleness": statistics.fmean(result.staleness for result in results),
    }


def measured(job: Path, overrides: tuple[str, ...], runs: int) -> dict[str, Any]:
    """Run a setting for real; return its figures, and the times for the lab."""
    trainer = load_job(str(job), overrides).trainer
    reports = [run_job_file(job, (*overrides, f"run.seed={seed}")) for seed in range(1, runs + 1)]
    timing = timing_of(reports, trainer.count, trainer.workers, trainer.batch)
    gaps = [report.sync.gap_mean for report in reports if report.sync.gap_mean is not None]
    return {
        "timing": timing.model_dump(exclude_defaults=True),
        "ne": [report.eval.ne if report.eval else None for report in reports],
        "gap": statistics.fmean(gaps) if gaps else None,
        "staleness": [report.staleness.embedding_mean for report in reports],
    }


def make(job: Path, names: Sequence[str], runs: int, found: dict[str, Any], keep: Callable[[], None]) -> None:
    """Make the missing runs: first the real ones, which need the whole machine."""
    for name in names:
        own = found.setdefault(name, {})
        if "real" not in own:
            own["real"] = measured(job, SETTINGS[name], runs)
            keep()
    for name in names:
        own, overrides = found[name], SETTINGS[name]
        timing = Timing.model_validate(own["real"]["timing"])
        trainers = load_job(str(job), overrides).trainer.count
        ways = {"lab": overrides, "half": (*overrides, f"trainer.count={max(1, trainers // 2)}")}
        for way, settings in ways.items():
            if way not in own and (way == "lab" or trainers > 1):
                own[way] = emulated(job, settings, runs, timing)
                keep()


def show(name: str, own: dict[str, Any]) -> None:
    """Print the means, and the lab's differences from the real runs."""
    real = own["real"]
    ne = statistics.fmean(real["ne"])
    for way in ("real", "lab", "half"):
        if way in own:
            figures = own[way]
            change = statistics.fmean(figures["ne"]) / ne - 1
            gap = "none" if figures["gap"] is None else f"{figures['gap']:.2f}"
            print(f"{name}: {way}: NE {statistics.fmean(figures['ne']):.4f} ({change:+.2%}), gap {gap}")


def main() -> None:
    """Measure every setting, and print means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, Any] = kept_runs(given.out)
    make(given.job, given.only, given.runs, found, lambda: keep_runs(given.out, found))
    for name in given.only:
        show(name, found[name])


if __name__ == "__main__":
    main()
