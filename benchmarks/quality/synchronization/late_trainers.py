"""Rounds of real jobs with a trainer that stands still, or is slow: how often the others have one, and NE.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/late_trainers.py --job examples/demo.toml --runs 3 \\
        --out benchmarks/quality/results/late_trainers.json

Four trainers, each a process. *standing still*: one of them is stopped for 5 s in every 15. *slow*: it is
stopped for two thirds of the time, 40 ms at a time. The gap is in iterations: the mean over time and over the
other trainers. Runs that are in the file already are not made again; runs of one seed alternate.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.lab.chaos.injector import processes_of_role
from shadowsync.nodes.runtime.process import CLI, python
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import read_report
from shadowsync.pipeline.text.markdown import markdown_table

TRAINERS: Final = 4
FIRST_SECONDS: Final = 6.0
ALGORITHMS: Final[dict[str, tuple[str, ...]]] = {
    "bmuf": ("sync.algorithm=bmuf",),
    "easgd": ("sync.algorithm=easgd",),
    "decoupled": ("sync.algorithm=decoupled",),
}
DISTURBED: Final[dict[str, tuple[float, float] | None]] = {
    "undisturbed": None,
    "standing still": (5.0, 10.0),
    "slow": (0.04, 0.02),
}
"""Seconds that a trainer is stopped, and runs, in turn."""


def run(job: Path, settings: list[str], stopped: tuple[float, float] | None) -> dict[str, Any]:
    """Run a job in processes, one of whose trainers is stopped now and then; return its figures."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        settings = [*settings, f"trainer.count={TRAINERS}", f"run.directory={json.dumps(folder)}"]
        options = [part for setting in settings for part in ("--set", setting)]
        command = python(CLI, "run", str(job), *options, "--quiet")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            if stopped is not None:
                disturb(process, *stopped)
            process.wait()
        report = read_report(Path(folder) / "latest" / "report.json")
    return figures(report)


def disturb(process: subprocess.Popen[bytes], stopped_seconds: float, running_seconds: float) -> None:
    """Stop the last trainer in turn until the job ends, once all trainers have begun."""
    deadline = time.monotonic() + 60.0
    while len(processes_of_role(process.pid, "trainer")) < TRAINERS and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(FIRST_SECONDS)
    victim = processes_of_role(process.pid, "trainer")[-1]
    with suppress(psutil.NoSuchProcess):
        while process.poll() is None and victim.is_running():
            victim.send_signal(signal.SIGSTOP)
            time.sleep(stopped_seconds)
            victim.send_signal(signal.SIGCONT)
            time.sleep(running_seconds)


def figures(report: Report) -> dict[str, Any]:
    """Return the figures of a run; the disturbed trainer is the one with the fewest examples."""
    speeds = report.throughput.per_trainer
    others = sorted(speeds, key=lambda name: speeds[name] or 0.0)[1:]
    gaps = [value for name in others for _, value in report.curves.sync_gap.get(name, [])]
    merges = report.sync.merges
    return {
        "ne": report.eval.ne if report.eval is not None else None,
        "rounds": report.sync.rounds,
        "incomplete": report.sync.incomplete_rounds,
        "gap_of_others": statistics.fmean(gaps) if gaps else None,
        "examples_per_second": report.throughput.examples_per_second,
        "seconds": report.wall_seconds,
        "adds_up": report.ledger.adds_up,
        "merges": None if merges is None else merges.model_dump(),
    }


def main() -> None:
    """Run what is missing, save after each run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made = kept_runs(given.out)
    for seed in range(1, given.runs + 1):
        for how, stopped in DISTURBED.items():
            for name in given.only:
                key = f"{name}, {how}, {seed}"
                if key not in made:
                    settings = [*ALGORITHMS[name], f"run.seed={seed}", *given.settings]
                    made[key] = run(given.job, settings, stopped)
                    keep_runs(given.out, made)
    print(
        "\n".join(
            markdown_table(("algorithm", "trainers", "NE", "gap of the others", "examples/s"), rows(made))
        )
    )


def rows(made: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows: means over the seeds."""
    found: list[tuple[str, ...]] = []
    for name in ALGORITHMS:
        for how in DISTURBED:
            runs = [one for key, one in made.items() if key.startswith(f"{name}, {how}, ")]
            if runs:
                means = [
                    statistics.fmean(one[key] for one in runs if one[key] is not None)
                    for key in ("ne", "gap_of_others", "examples_per_second")
                ]
                found.append((name, how, f"{means[0]:.4f}", f"{means[1]:.2f}", f"{means[2]:,.0f}"))
    return found


if __name__ == "__main__":
    main()
