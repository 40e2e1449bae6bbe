"""A growing table that gets new ids all the time, far more than it may have rows, on a node of little memory.

    python benchmarks/speed/nodes/drifting_ids.py WORK --out benchmarks/speed/results/drifting_ids.json

WORK is a folder on a local disk with 16 GB to spare. Each example has a list of ids: half of them are new,
and the others were new before, log-uniform so long ago, up to `--window` ids. So once the table is full each
batch takes rows from the ids that were not trained longest, and rows of old ids come from the disk. The
embedding node runs in a control group (version 1, as root) with as much memory as `--limit`. The run is
divided into tenths of its examples; of each: examples/s, CPU time and memory of the node. Smaller:

    ... WORK --ids 24000000 --window 4000000 --cap 1GB --memory 130MB --limit 500MB
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.benchmarks.job_runs import job_text
from shadowsync.benchmarks.speed.nodes.rows_on_disk import GROUP, limit_node
from shadowsync.lab.chaos.faulted_job import progress_of
from shadowsync.pipeline.report.run_folders.write import describe_hardware, read_report, versions
from shadowsync.pipeline.text.sizes import parse_size

NEW, OLD, DENSE = 10, 10, 4
PARTS: Final = 10
LOOK_SECONDS: Final = 1.0
FILE_EXAMPLES: Final = 500_000


def write_input(folder: Path, ids: int, window: int) -> int:
    """Write files of examples that have `ids` new ids together; return the number of examples."""
    examples = ids // NEW
    folder.mkdir(exist_ok=True)
    for start in range(0, examples, FILE_EXAMPLES):
        path = folder / f"train-{start // FILE_EXAMPLES:04}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng([1, start])
        count = min(FILE_EXAMPLES, examples - start)
        first = (start + np.arange(count, dtype=np.int64))[:, None] * NEW
        ago = np.exp(rng.random((count, OLD)) * np.log(window)).astype(np.int64)
        drawn = np.concatenate([first + np.arange(NEW), np.maximum(first - ago, 0)], axis=1)
        offsets = np.arange(0, drawn.size + 1, NEW + OLD, dtype=np.int32)
        columns: dict[str, Any] = {
            "ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(drawn.ravel()))
        }
        columns |= {f"I{number}": rng.random(count).astype(np.float32) for number in range(DENSE)}
        columns["label"] = (rng.random(count) < 0.25).astype(np.int8)
        partial = path.with_suffix(".partial")
        pq.write_table(pa.table(columns), partial, row_group_size=20_000, use_dictionary=False)
        partial.rename(path)
    return examples


def sections(data: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the job: one table, and a model that leaves the time to it."""
    columns: dict[str, Any] = {"label": "label", "ids": {"kind": "multi_hot", "max_ids": NEW + OLD}}
    columns |= {f"I{number}": "dense" for number in range(DENSE)}
    return {
        "run": {"name": "drift", "start_timeout_seconds": 180.0},
        "data": {
            "format": "parquet",
            "path": str(data / "train-*.parquet"),
            "shuffle_window": 0,
            "columns": columns,
        },
        "model": {"name": "dlrm", "embedding_dim": options.dim, "bottom": [64], "top": [64]},
        "tables": {"ids": {"kind": "growing", "max_bytes": parse_size(options.cap)}},
        "trainer": {"count": 1, "batch": 512, "lr": 0.01},
        "embedding": {
            "nodes": 1,
            "lr": 0.02,
            "memory_bytes": parse_size(options.memory),
            "folder": str(options.work),
        },
        "checkpoint": {"every_seconds": options.checkpoint_seconds},
        "sync": {"algorithm": "none", "nodes": 0},
        "report": {"pictures": False},
    }


@dataclass(frozen=True)
class Look:
    """What is seen of a running job, its embedding node's own memory (no pages of files) and CPU time."""

    at: float
    examples: int
    memory_bytes: int
    cpu_seconds: float


def look_at(run: Path) -> Look | None:
    """Look at the job; None before it trains, and once its node has ended."""
    progress = progress_of(run)
    if progress is None or not progress.examples:
        return None
    try:
        (node,) = (GROUP / "cgroup.procs").read_text().split()
        status = Path(f"/proc/{node}/status").read_text()
        times = psutil.Process(int(node)).cpu_times()
        # A process that is ending has no memory.
        (own,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    except (ValueError, OSError, psutil.NoSuchProcess):
        return None
    used = times.user + times.system
    return Look(time.monotonic(), progress.examples, int(own.split()[1]) * 1024, used)


def watch(run: Path, ended: threading.Event, seen: list[Look]) -> None:
    """Look again and again."""
    while not ended.wait(LOOK_SECONDS):
        if (look := look_at(run)) is not None:
            seen.append(look)


def parts_of(seen: list[Look], examples: int) -> list[dict[str, float]]:
    """Return the figures of each tenth of the examples."""
    # Those after the last example are of the checkpoint at the end.
    last = next((number for number, look in enumerate(seen) if look.examples == examples), len(seen) - 1)
    seen = seen[: last + 1]
    counts = [look.examples for look in seen]
    bounds = np.linspace(counts[0], examples, PARTS + 1)
    times = np.interp(bounds, counts, [look.at for look in seen])
    cpu = np.interp(bounds, counts, [look.cpu_seconds for look in seen])
    size = (examples - counts[0]) / PARTS
    return [
        {
            "examples_per_second": size / float(times[part + 1] - times[part]),
            "seconds": float(times[part + 1] - times[part]),
            "node_cpu_seconds_per_million": 1e6 * float(cpu[part + 1] - cpu[part]) / size,
            "memory_bytes": max(
                (look.memory_bytes for look in seen if times[part] <= look.at <= times[part + 1]), default=0
            ),
        }
        for part in range(PARTS)
    ]


def run_job(options: argparse.Namespace, job: Path, examples: int) -> dict[str, Any]:
    """Run the job; return its figures."""
    runs = options.work / "runs"
    process = subprocess.Popen(
        [sys.executable, "-m", "shadowsync", "run", str(job), "--set", f"run.directory={runs}"],
        stdout=subprocess.DEVNULL,
    )
    ended, seen = threading.Event(), list[Look]()
    limit = parse_size(options.limit)
    threads = [
        threading.Thread(target=limit_node, args=(process.pid, options.work, limit, ended)),
        threading.Thread(target=watch, args=(runs / "latest", ended, seen)),
    ]
    for thread in threads:
        thread.start()
    code = process.wait()
    ended.set()
    for thread in threads:
        thread.join()
    if code:
        raise RuntimeError(f"the job ended with {code}")
    report = read_report(runs / "latest" / "report.json")
    shutil.rmtree(runs)
    parts = parts_of(seen, examples)
    rates = [part["examples_per_second"] for part in parts]
    return {
        "tenths": parts,
        "last_over_first": rates[-1] / rates[0],
        "slowest_over_fastest": min(rates) / max(rates),
        "examples_per_second": report.throughput.examples_per_second,
        "limited_at_bytes": int((GROUP / "memory.max_usage_in_bytes").read_text()),
        "times_at_limit": int((GROUP / "memory.failcnt").read_text()),
        "disk": [node.model_dump() for node in report.disk_rows],
        "tables": [table.model_dump() for table in report.growing_tables],
        "cpu_seconds": {node.name: node.cpu_seconds for node in report.nodes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--ids", type=int, default=200_000_000, help="new ids of the whole run")
    parser.add_argument(
        "--window", type=int, default=20_000_000, help="how many new ids ago the oldest was new"
    )
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--cap", default="5GB", help="of the table, with the search for ids")
    parser.add_argument("--memory", default="600MB")
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.work = options.work.resolve()
    data = options.work / f"ids-{options.ids}-{options.window}"
    examples = write_input(data, options.ids, options.window)
    job = options.work / "job.toml"
    job.write_text(job_text(sections(data, options)), encoding="utf-8")
    result: dict[str, Any] = {
        "options": {name: str(value) for name, value in vars(options).items() if name not in ("work", "out")},
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        **run_job(options, job, examples),
    }
    for part in result["tenths"]:
        print({name: round(value) for name, value in part.items()})
    print({name: result[name] for name in ("last_over_first", "slowest_over_fastest", "disk", "tables")})
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
