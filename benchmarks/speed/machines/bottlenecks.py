"""Whether `shadowsync profile` finds a bottleneck that is planted from outside.

    python benchmarks/speed/machines/bottlenecks.py --out bottlenecks.json [--only NAME] [--rounds 3]

Each case is the same job with one slow thing: a node that is stopped nine tenths of the time, a network with
a delay, rounds that every step waits for, a model that holds the interpreter's lock. The controls are the job
without any, and long steps that hide the same delay: their verdict must be "compute". Verdicts leave out
waits for a core, which depend on other programs. The exit code is 1 if a case was not found.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from shadowsync.benchmarks.job_runs import job_text, log_or_generated, on_log
from shadowsync.benchmarks.pairs import save
from shadowsync.pipeline.performance.document import Profile, bottleneck_of, read_profile

Sections = dict[str, dict[str, Any]]

# Steps of some milliseconds, and few batches ahead, so that a worker soon waits for a node that stops.
NEUTRAL: Sections = {
    "data": {"epochs": 500},
    "model": {"embedding_dim": 8, "table_rows": 2000, "bottom": [384, 128], "top": [512, 384]},
    "trainer": {"count": 1, "workers": 2, "batch": 256, "credit": 2, "precision": "float32"},
    "embedding": {"nodes": 1},
    "sync": {"algorithm": "none"},
    "report": {"pictures": False},
}
SMALL = {"bottom": [16], "top": [16]}
BIG = {"bottom": [2048, 1024, 256], "top": [2048, 1024]}
SLOW = {"delay": "50ms", "delay_links": "all"}
FIXED = {"algorithm": "easgd", "nodes": 1, "mode": "fixed", "every": 1}
LOOP = {"name": "./loop.py:Loop", "bottom": None, "top": None}
# A loop over Python numbers holds the interpreter's lock, as a product of matrices would not.
LOOP_FILE = """
import torch
from torch import nn

class Loop(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.last = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        sum(range(2_000_000))
        return self.last(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
"""
STOPPED_SECONDS, RUNNING_SECONDS = 0.45, 0.05


@dataclass(frozen=True)
class Case:
    """A planted cause, and the bottleneck to find."""

    bottleneck: str
    changes: Sections = field(default_factory=dict)
    stopped: str = ""


CASES = {
    "nothing": Case("compute"),
    "a stopped reader": Case("reader", stopped="reader"),
    "a stopped embedding node": Case("embedding", stopped="embedding"),
    "a slow network": Case("network", {"model": SMALL, "network": SLOW}),
    "a slow network, hidden": Case("compute", {"model": BIG, "trainer": {"batch": 1024}, "network": SLOW}),
    "rounds that are waited for": Case(
        "sync", {"model": SMALL, "sync": FIXED, "network": {**SLOW, "delay": "20ms", "delay_links": "sync"}}
    ),
    "the interpreter's lock": Case("gil", {"model": LOOP}),
}


def sections(log: Path, case: Case, folder: Path) -> Sections:
    """Return the job of a case."""
    found: Sections = on_log(log, seed=1)
    for changes in (NEUTRAL, case.changes, {"run": {"directory": str(folder)}}):
        for name, keys in changes.items():
            found[name] = {**found.get(name, {}), **keys}
    return {name: {k: v for k, v in keys.items() if v is not None} for name, keys in found.items()}


def profiled(log: Path, case: Case, seconds: int) -> Profile:
    """Profile the job of a case; raises CalledProcessError if it does not end well."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        (folder / "loop.py").write_text(LOOP_FILE, encoding="utf-8")
        (folder / "job.toml").write_text(job_text(sections(log, case, folder)), encoding="utf-8")
        command = [sys.executable, "-m", "shadowsync.cli", "profile", str(folder / "job.toml"), "--quiet"]
        command += ["--seconds", str(seconds)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        with run_in_bursts(process, case.stopped, folder) if case.stopped else contextlib.nullcontext():
            code = process.wait()
        if code:
            raise subprocess.CalledProcessError(code, command)
        return read_profile(folder / "latest" / "profile.json")


@contextmanager
def run_in_bursts(parent: subprocess.Popen[bytes], role: str, folder: Path) -> Iterator[None]:
    """Stop a role's process most of the time, from training until the block ends."""
    over = threading.Event()

    def pulse() -> None:
        while not any(folder.glob("latest/ledger.sqlite")) or (pid := _node_of(parent.pid, role)) is None:
            if over.wait(0.1):
                return
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_SECONDS)
                os.kill(pid, signal.SIGCONT)
                over.wait(RUNNING_SECONDS)

    thread = threading.Thread(target=pulse, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _node_of(parent: int, role: str) -> int | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children(recursive=True):
            if child.cmdline()[1:4] == ["-m", "shadowsync.cli", role]:
                return int(child.pid)
    return None


def found_in(profile: Profile) -> tuple[str, dict[str, float]]:
    """Return the bottleneck apart from waits for a core, and the shares of time."""
    shares = profile.verdict.time.model_dump()
    rest = {name: share / (1.0 - shares["core"]) for name, share in shares.items()} | {"core": 0.0}
    return bottleneck_of(type(profile.verdict.time)(**rest))[0], shares


def main() -> None:
    """Profile every case, print what was found, and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--log", type=Path, help="a generated log; by default one is made")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=5, help="of each profile")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with log_or_generated(given.log, 20_000, 1_000) as log:
        for number in range(given.rounds):
            for name in given.only:
                found, shares = found_in(profiled(log, CASES[name], given.seconds))
                rows.append({"round": number, "case": name, "found": found, "shares": shares})
                right = "found" if found == CASES[name].bottleneck else "NOT FOUND"
                largest = ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.05)
                print(f"{name}: {found} ({largest}): {right}", flush=True)
    if given.out:
        save(given.out, "planted bottlenecks", rows)
    raise SystemExit(any(row["found"] != CASES[row["case"]].bottleneck for row in rows))


if __name__ == "__main__":
    main()
