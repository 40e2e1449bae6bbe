"""Quality cost of a trainer that joins midway, and how soon it trains.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/faults/joining.py --job examples/demo.toml \\
        --out benchmarks/faults/results/joining.json

Two jobs alternate: the job as it is, and the job to which `shadowsync scale` adds a trainer after --after
examples. All runs have the seed of the job file. The seconds are from the start of that command to the
joiner's first batch in `ledger.sqlite`, polled every 50 ms. Runs that are in the file already are not made
again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs, query_ledger
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.run_folders.write import read_report

Figures = dict[str, Any]
LOOK_SECONDS = 0.05
LIMIT_SECONDS = 600.0
CLI = (sys.executable, "-m", "shadowsync.cli")


def run(job: Path, after: int | None) -> Figures:
    """Run the job, with or without a joiner; return the figures to keep."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        command = [*CLI, "run", str(job), "--quiet", "--set", f"run.directory={json.dumps(folder)}"]
        with subprocess.Popen(command) as process:
            latest = Path(folder) / "latest"
            seconds = None if after is None else _join(latest, load_job(str(job)).trainer.count, after)
            if process.wait():
                raise RuntimeError(f"the job ended with {process.returncode}")
        report = read_report(latest / "report.json")
        assert report.eval is not None
        assert report.ledger.adds_up
        return {
            "ne": report.eval.ne,
            "examples_per_second": report.throughput.examples_per_second,
            "per_trainer": report.throughput.per_trainer,
            "seconds_to_first_batch": seconds,
        }


def _join(run_folder: Path, trainers: int, after: int) -> float:
    """Add a trainer after `after` examples; return the seconds to its first batch."""
    _wait(run_folder, f"SELECT coalesce(sum(examples), 0) >= {after} FROM batches")
    began = time.monotonic()
    command = [*CLI, "scale", str(run_folder), f"trainer={trainers + 1}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as scaling:
        _wait(run_folder, f"SELECT count(*) > 0 FROM batches WHERE trainer = 'trainer-{trainers}'")
        seconds = time.monotonic() - began
        if scaling.wait():
            raise RuntimeError(f"shadowsync scale ended with {scaling.returncode}")
    return seconds


def _wait(run_folder: Path, question: str) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not query_ledger(run_folder / "ledger.sqlite", question):
        if time.monotonic() > until:
            raise RuntimeError(f"not within {LIMIT_SECONDS} s: {question}")
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Make the missing runs, and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--after", type=int, default=250_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, list[Figures]] = kept_runs(given.out)
    for number in range(given.runs):
        for name, after in (("without a joiner", None), ("with a joiner", given.after)):
            runs = made.setdefault(name, [])
            if len(runs) <= number:
                runs.append(run(given.job, after))
                keep_runs(given.out, made)
    for name, runs in made.items():
        found = [one["ne"] for one in runs]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        print(f"{name}: NE {statistics.fmean(found):.5f}, deviation {spread:.5f}, {len(found)} runs")
    waits = [one["seconds_to_first_batch"] for one in made["with a joiner"]]
    print(f"seconds to the first batch: median {statistics.median(waits):.2f}, worst {max(waits):.2f}")


if __name__ == "__main__":
    main()
