"""Rate, latency and CPU of `POST /retrieve`, by number of items, exact and by index.

    python benchmarks/speed/serving/retrieval.py --out benchmarks/speed/results/retrieval.json

A small job trains two towers of 64 floats; its items are so many ids with their genres. A server on one core
answers threads of this process, which each have one query and one connection: 10 items of it. The server's
CPU of a request counts its user and system time; it hardly depends on what else the machine does, as the
others do. `resident_megabytes` is the server's memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.pipeline.report.run_folders.write import describe_hardware, versions
from shadowsync.serving.client import ScoringClient

USERS, GENRES, ROWS, K = 2000, 20, 200_000, 10
JOB = """
[run]
name = "towers"
[data]
format = "parquet"
path = "rows.parquet"
[data.columns]
user = "categorical"
age = "dense"
movie = "categorical"
genre = "categorical"
seen = "label"
[model]
name = "two_tower"
query = ["user", "age"]
item = ["movie", "genre"]
top = [64]
options = { dim = 64 }
[trainer]
count = 1
batch = 512
[sync]
algorithm = "none"
[report]
pictures = false
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def train(folder: Path) -> None:
    """Train two towers on users who each like one genre."""
    rng = np.random.default_rng(1)
    user, taste = rng.integers(0, USERS, ROWS), rng.integers(0, GENRES, USERS)
    movie = rng.integers(0, 10_000 // GENRES, ROWS) * GENRES + taste[user]
    rows = {"user": user, "age": taste[user] * 1.5, "movie": movie, "genre": movie % GENRES}
    pq.write_table(pa.table({**rows, "seen": np.ones(ROWS, np.int8)}), folder / "rows.parquet")
    (folder / "job.toml").write_text(JOB)
    subprocess.run(command("run", "job.toml"), cwd=folder, check=True, stdout=subprocess.DEVNULL)


def command(*arguments: str) -> list[str]:
    """Return a command line of shadowsync."""
    return [sys.executable, "-m", "shadowsync", *arguments]


@contextmanager
def served(folder: Path, items: Path, search: str) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the run with these items on one core; yields the address and the process."""
    given = ["--port", "0", "--items", str(items), "--search", search, "--queries", "rows.parquet"]
    line = ["env", *(f"{name}={value}" for name, value in ONE_THREAD.items())]
    line += ["taskset", "-c", "0", *command("serve", "runs/towers", *given)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            found = next(m for text in process.stdout if (m := re.search(r"at (http://\S+)/retrieve", text)))
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()


def load(url: str, server: psutil.Process, connections: int, seconds: float) -> dict[str, float]:
    """Ask over so many connections; return requests/s, latency and the server's CPU."""
    until = time.monotonic() + seconds

    def ask(number: int) -> list[float]:
        taken = list[float]()
        with ScoringClient(url) as client:
            while (since := time.monotonic()) < until:
                found = client.retrieve([{"user": (number * 997 + len(taken)) % USERS, "age": 1.5}], K)
                taken.append(time.monotonic() - since)
                assert len(found[0]) == K
        return taken

    before = server.cpu_times()
    with ThreadPoolExecutor(connections) as threads:
        taken = np.concatenate([*threads.map(ask, range(connections))])
    after = server.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    p50, p99 = np.percentile(taken, (50, 99)) * 1e3
    return {
        "requests_per_second": round(len(taken) / seconds, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "server_cpu_ms": round(1e3 * cpu / len(taken), 3),
    }


def measured(folder: Path, count: int, search: str, seconds: float) -> dict[str, Any]:
    """Return the figures of a server."""
    items = folder / f"items-{count}.parquet"
    if not items.exists():
        every = np.arange(count)
        pq.write_table(pa.table({"movie": every, "genre": every % GENRES}), items)
    since = time.monotonic()
    with served(folder, items, search) as (url, server):
        start = time.monotonic() - since
        load(url, server, 4, 1.0)
        of_connections = {f"{many} connections": load(url, server, many, seconds) for many in (1, 8)}
        with ScoringClient(url) as client:
            stats = client.stats()["retrieval"]
        resident = server.memory_info().rss / 1e6
    kept = {name: stats[name] for name in ("items", "search", "recall", "build_seconds")}
    return {**kept, "start_seconds": round(start, 1), "resident_megabytes": round(resident), **of_connections}


def main() -> None:
    """Measure each number of items, exact and by index, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, Any] = {
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "figures": [],
    }
    with tempfile.TemporaryDirectory() as name:
        train(Path(name))
        for count in given.items:
            for search in ("exact", "index"):
                found["figures"].append(measured(Path(name), count, search, given.seconds))
                print(json.dumps(found["figures"][-1]), flush=True)
                given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
