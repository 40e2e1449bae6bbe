"""The time a job takes to begin and end, and its processes' memory.

Two ways to start a job are measured, in alternation.

    python benchmarks/speed/machines/start.py --job examples/demo.toml --times 10
    python benchmarks/speed/machines/start.py --job examples/demo.toml --other ../before/.venv/bin/shadowsync

Without `--other` the two ways are the start methods, "forkserver" and "spawn"; with it, this checkout's
command and another's. Of each run: seconds from the command to the first trained batch in the ledger, seconds
to the end, CPU seconds (user and system) of all processes, and the sum of PSS over all processes, at its
largest while training. The output has medians and every run, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from shadowsync.benchmarks.job_runs import query_ledger
from shadowsync.nodes.supervisor.starter import METHOD_VARIABLE, METHODS

EVERY_SECONDS = 0.02
PSS_EVERY_SECONDS = 0.5
FIGURES = ("first_batch_seconds", "end_seconds", "cpu_seconds", "pss_mib")
Run = dict[str, float]


def trained(runs: Path) -> bool:
    """Whether the ledger of the run in this folder has a batch."""
    ledgers = runs.glob("*/ledger.sqlite")
    return any(query_ledger(ledger, "SELECT 1 FROM batches LIMIT 1") for ledger in ledgers)


def pss_bytes(pid: int) -> float:
    """The sum of PSS over a process and its descendants.

    A page that several of them share counts once.
    """
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
    return total


def cpu_seconds() -> float:
    """User and system CPU seconds of all ended descendants of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(command: list[str], variables: Mapping[str, str]) -> Run:
    """Run the command once, with a folder of its own; return the FIGURES."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        cpu, began = cpu_seconds(), time.monotonic()
        job = subprocess.Popen(
            [*command, "--quiet", "--set", f"run.directory={json.dumps(str(runs))}"],
            env=os.environ | dict(variables),
            stdin=subprocess.DEVNULL,
        )
        first, pss, looked = 0.0, 0.0, began
        while job.poll() is None:
            now = time.monotonic()
            if not first and trained(runs):
                first = now - began
            if first and now - looked > PSS_EVERY_SECONDS:
                pss, looked = max(pss, pss_bytes(job.pid)), now
            time.sleep(EVERY_SECONDS)
        if job.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {job.returncode}")
        end = time.monotonic() - began
        return dict(zip(FIGURES, (first, end, cpu_seconds() - cpu, pss / (1 << 20)), strict=True))


def main() -> None:
    """Run both in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--other", help="another checkout's shadowsync, instead of the other start method")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    own = [sys.executable, "-m", "shadowsync.cli", "run", str(given.job)]
    ways: dict[str, tuple[list[str], dict[str, str]]]
    if given.other:
        ways = {"this": (own, {}), "other": ([given.other, "run", str(given.job)], {})}
    else:
        ways = {method: (own, {METHOD_VARIABLE: method}) for method in METHODS}
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(given.times):
        for name, (command, variables) in ways.items():
            found[name].append(measured(command, variables))
            shown = ", ".join(f"{key} {value:.2f}" for key, value in found[name][-1].items())
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in FIGURES}
        for name, runs in found.items()
    }
    text = json.dumps({"job": str(given.job), "medians": medians, "runs": found}, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
