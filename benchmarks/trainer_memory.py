"""Resident memory of each trainer over a long job: at its start, in the middle, at its end, and the slope.

    python benchmarks/trainer_memory.py --examples 10000000 --out docs/results/trainer_memory.json

Trains so many examples, epochs of one file, and reads the kernel's count of each trainer's resident memory
once a second; how many examples were trained by then the ledger says. The slope is a line through the
samples after the first tenth, in which buffers grow to their size. Saved once a minute.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from shadowsync.benchmarks.job_runs import job_text
from shadowsync.benchmarks.pairs import save
from shadowsync.benchmarks.peer_log import write_peer_log

EVERY_SECONDS = 1.0
WARM_UP = 0.1
KEEP_SECONDS = 60.0
Sample = tuple[int, float]
Samples = dict[int, list[Sample]]


def sections(log: Path, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The job of the comparison with other systems, as often as it takes."""
    return {
        "run": {"directory": str(given.data / "memory-runs"), "name": "memory"},
        "data": {"format": "parquet", "path": str(log), "epochs": -(-given.examples // given.file_examples)},
        "model": {"table_rows": 100_000},
        "trainer": {"count": given.trainers, "workers": given.workers, "batch": given.batch, "lr": 0.01},
        "embedding": {"nodes": 1, "lr": 0.01},
        "sync": {"algorithm": "easgd" if given.trainers > 1 else "none"},
    }


def trainers_of(job: int) -> dict[int, float]:
    """Resident bytes of each trainer of a running job, by process."""
    found = {}
    try:
        for child in psutil.Process(job).children(recursive=True):
            if "shadowsync.cli" in (words := child.cmdline()) and "trainer" in words:
                found[child.pid] = float(child.memory_info().rss)
    except psutil.NoSuchProcess:
        # A process ended between the listing and the question.
        return {}
    return found


def trained_examples(run: Path) -> int:
    """By the ledger; 0 while there is none."""
    ledger = run / "ledger.sqlite"
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        try:
            return int(db.execute("SELECT coalesce(sum(examples), 0) FROM batches").fetchone()[0])
        except sqlite3.OperationalError:
            # Its tables are not made yet.
            return 0


def sampled(job_file: Path, runs: Path, keep: Callable[[Samples], object]) -> Samples:
    """Runs the job; by trainer what was trained in all and how large it was by then. What there is goes to
    `keep` once a minute."""
    before = set(runs.glob("*")) if runs.exists() else set()
    command = [sys.executable, "-m", "shadowsync.cli", "run", str(job_file), "--quiet"]
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    samples: Samples = {}
    kept = time.monotonic()
    while job.poll() is None:
        time.sleep(EVERY_SECONDS)
        if samples and time.monotonic() > kept + KEEP_SECONDS:
            keep(samples)
            kept = time.monotonic()
        new = [run for run in runs.glob("*") if run not in before and not run.is_symlink()]
        examples = trained_examples(new[0]) if new else 0
        for process, resident in trainers_of(job.pid).items() if examples else ():
            samples.setdefault(process, []).append((examples, resident))
    if job.returncode:
        raise RuntimeError(f"the job ended with {job.returncode}")
    return samples


def summary(samples: list[Sample]) -> dict[str, float]:
    """Megabytes at the start, in the middle and at the end of the samples, and the slope."""
    examples, resident = np.array(samples, np.float64).T
    megabytes = resident / 1e6
    warm = examples >= WARM_UP * examples[-1]
    middle = int(np.searchsorted(examples, examples[-1] / 2))
    slope = np.polyfit(examples[warm] / 1e6, megabytes[warm], 1)[0]
    return {
        "start_megabytes": megabytes[0],
        "warm_megabytes": megabytes[warm][0],
        "middle_megabytes": megabytes[middle],
        "end_megabytes": megabytes[-1],
        "peak_megabytes": megabytes.max(),
        "slope_megabytes_per_million_examples": slope,
    }


def kept(out: Path, samples: Samples) -> dict[str, dict[str, float]]:
    """Saves what there is so far; gives the summary of each trainer."""
    results = {f"trainer {number}": summary(rows) for number, rows in enumerate(samples.values())}
    save(out, "memory of a trainer", {"trainers": results, "samples": list(samples.values())})
    return results


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--file-examples", type=int, default=600_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, default=Path("trainer_memory.json"))
    given = parser.parse_args()
    log = write_peer_log(given.data / f"peer-{given.file_examples}.parquet", given.file_examples)
    job = given.data / "memory.toml"
    job.write_text(job_text(sections(log, given)), encoding="utf-8")
    keep = partial(kept, given.out)
    for name, figures in keep(sampled(job, given.data / "memory-runs", keep)).items():
        print(name, "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
