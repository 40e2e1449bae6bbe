"""Time from the kill of an embedding node to the first batch after it.

    python benchmarks/speed/shard_recovery.py --rows 600000 --times 5 --log LOG

The job has one embedding node and 26 tables of --rows rows each, with 16 floats and row-wise Adagrad: 600,000
rows are 1 GB. It writes a checkpoint every --every-seconds. The embedding node is killed at the end of such
an interval, just before the next checkpoint; every batch needs it. The file has, as JSON, the seconds from
the kill until the replacement takes part, and until the next batch is in `ledger.sqlite`, polled every 20 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import (
    job_text,
    keep_runs,
    kept_runs,
    log_or_generated,
    query_ledger,
)
from shadowsync.benchmarks.speed.checkpoints import large_tables
from shadowsync.lab.chaos.injector import processes_of_role
from shadowsync.pipeline.report.write import read_report

LOOK_SECONDS = 0.02
LIMIT_SECONDS = 600.0
BATCHES = "SELECT count(*) FROM batches"
JOINED = "SELECT count(*) FROM events WHERE node LIKE 'embedding%' AND what LIKE 'joined the running%'"


def main() -> None:
    """Run the jobs, and print medians and longest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="rows of each table")
    parser.add_argument("--examples", type=int, default=1_000_000, help="of the log, if it is generated")
    parser.add_argument("--every-seconds", type=float, default=60.0)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--log", type=Path, help="a folder of `shadowsync generate demo-data`")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, Any] = kept_runs(given.out) or {"rows": given.rows, "runs": []}
    with log_or_generated(given.log, given.examples, 1000) as log:
        while len(made["runs"]) < given.times:
            made["runs"].append(run(log, given.rows, given.every_seconds))
            keep_runs(given.out, made)
    for name in ("seconds_to_replacement", "seconds_to_first_batch"):
        found = [one[name] for one in made["runs"]]
        print(f"{name}: median {statistics.median(found):.2f}, most {max(found):.2f}, {len(found)} runs")


def run(log: Path, rows: int, every_seconds: float) -> dict[str, float]:
    """Run the job, kill its embedding node once, and return the figures to keep."""
    sections = large_tables(log, rows, every_seconds, optimizer="rowwise_adagrad")
    sections["run"]["node_timeout_seconds"] = 15.0
    sections["data"]["epochs"] = 1000
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        sections["run"]["directory"] = folder
        file = Path(folder) / "job.toml"
        file.write_text(job_text(sections), encoding="utf-8")
        command = [sys.executable, "-m", "shadowsync.cli", "run", str(file), "--quiet"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            found = _kill_and_watch(process.pid, Path(folder) / "latest", every_seconds)
            process.terminate()
        report = read_report(Path(folder) / "latest" / "report.json")
        assert report.ledger.adds_up
        return found


def _kill_and_watch(supervisor: int, run_folder: Path, every_seconds: float) -> dict[str, float]:
    ledger = run_folder / "ledger.sqlite"
    manifest = run_folder / "checkpoint" / "manifest.json"
    _wait(lambda: (query_ledger(ledger, BATCHES) or 0) > 0, "the first batch")
    _wait(manifest.exists, "the first checkpoint")
    first = manifest.stat().st_mtime
    _wait(lambda: manifest.exists() and manifest.stat().st_mtime > first, "the second checkpoint")
    # The kill is to come just before the next checkpoint.
    time.sleep(every_seconds - 3)
    joined = query_ledger(ledger, JOINED) or 0
    (victim,) = processes_of_role(supervisor, "embedding")
    age = time.time() - manifest.stat().st_mtime
    victim.kill()
    killed = time.monotonic()
    _wait(lambda: (query_ledger(ledger, JOINED) or 0) > joined, "another node")
    replaced = time.monotonic() - killed
    batches = query_ledger(ledger, BATCHES)
    _wait(lambda: query_ledger(ledger, BATCHES) > batches, "a batch")
    return {
        "seconds_since_checkpoint": age,
        "seconds_to_replacement": replaced,
        "seconds_to_first_batch": time.monotonic() - killed,
    }


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {LIMIT_SECONDS} s: {what}")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
