"""Measurement of a running job from outside.

Figures are the examples trained, by its ledger, and the CPU seconds of all its processes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from pathlib import Path

import psutil
from shadowsync.benchmarks.pairs import Figures

SAMPLE_SECONDS = 0.25
Samples = list[tuple[int, dict[str, float]]]


def trained(folder: Path) -> int:
    """Examples trained in the latest run in `folder`.

    They are read from the ledger's file; 0 before it is there.
    """
    path = folder / "latest" / "ledger.sqlite"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT coalesce(sum(examples), 0) FROM batches").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def cpu_by_role(process: psutil.Process) -> dict[str, float]:
    """CPU seconds so far of a job's processes, by role.

    They are the supervisor (`run`) and everything below it.
    """
    found: dict[str, float] = {}
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            words, times = one.cmdline(), one.cpu_times()
            role = words[3] if words[1:3] == ["-m", "shadowsync.cli"] else "other"
            found[role] = found.get(role, 0.0) + times.user + times.system
    return found


def follow(process: subprocess.Popen[bytes], folder: Path) -> Samples:
    """Sample a job until its process ends.

    A sample is the examples trained and the CPU seconds by role.
    """
    root = psutil.Process(process.pid)
    samples: Samples = []
    while process.poll() is None:
        examples = trained(folder)
        if examples and (not samples or examples > samples[-1][0]):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                samples.append((examples, cpu_by_role(root)))
        time.sleep(SAMPLE_SECONDS)
    return samples


def per_million(samples: Samples) -> Figures:
    """CPU seconds per million examples, by role and of `all`.

    They are between the first and the last sample.
    """
    (first, before), (last, after) = samples[0], samples[-1]
    scale = 1e6 / (last - first)
    figures = {role: (seconds - before.get(role, 0.0)) * scale for role, seconds in after.items()}
    return {"all": sum(figures.values())} | figures
