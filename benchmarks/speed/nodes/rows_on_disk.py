"""Jobs whose tables exceed the memory of their embedding node, beside the same jobs with all rows in memory.

    python benchmarks/speed/nodes/rows_on_disk.py WORK --out benchmarks/speed/results/rows_on_disk.json

WORK is a folder on a local disk with 30 GB to spare. Each input has 26 columns of ids, log-uniform or
uniform. The embedding node with rows on disk runs in a control group (version 1, as root) that has as much
memory as `--limit`, so that the kernel's own cache of the file is limited too. Runs alternate. Beside the
jobs, a store alone looks up and pushes rows that have all been trained before, so that each row that is not
in memory is read from the disk: the worst case, which a young table does not know.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.pipeline.config.tables import TableColumn, TableSettings
from shadowsync.pipeline.data.hashing import mix
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.report.run_folders.write import describe_hardware, read_report, versions
from shadowsync.pipeline.text.sizes import parse_size

COLUMNS, DIM = 26, 16
GROUP = Path("/sys/fs/cgroup/memory/shadowsync-rows")


def write_input(path: Path, examples: int, ids: int, kind: str) -> None:
    """Write rows whose ids are below `ids` in each column."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {}
    for number in range(COLUMNS):
        drawn = (
            np.exp(rng.random(examples) * np.log(ids)) if kind == "log" else rng.integers(0, ids, examples)
        )
        columns[f"C{number + 1}"] = drawn.astype(np.int64) * 7919 + number
    for number in range(13):
        columns[f"I{number + 1}"] = rng.random(examples).astype(np.float32)
    columns["label"] = (rng.random(examples) < 0.25).astype(np.int8)
    pq.write_table(pa.table(columns), path, row_group_size=50_000)


def write_job(path: Path, data: Path, rows: int) -> None:
    """Write the demo's job for these columns."""
    kinds = {"label": "label"} | {f"C{n + 1}": "categorical" for n in range(COLUMNS)}
    kinds |= {f"I{n + 1}": "dense" for n in range(13)}
    lines = "\n".join(f'{name} = "{kind}"' for name, kind in kinds.items())
    path.write_text(
        f'[data]\nformat = "parquet"\npath = "{data}"\nshuffle_window = 0\n[data.columns]\n{lines}\n'
        f'[model]\nname = "dlrm"\nembedding_dim = {DIM}\ntable_rows = {rows}\nbottom = [512, 256, 64]\n'
        "top = [512, 256]\n[trainer]\ncount = 1\nbatch = 512\nlr = 0.01\n[embedding]\nnodes = 1\nlr = 0.02\n"
        '[sync]\nalgorithm = "none"\nnodes = 0\n[report]\npictures = false\n'
    )


def limit_node(parent: int, work: Path, limit: int, ended: threading.Event) -> None:
    """Put the process that maps a file of `work` into a control group with so much memory, once it does."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    while not ended.wait(0.05):
        for process in psutil.Process(parent).children(recursive=True):
            try:
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                if any(str(work) in line and line.endswith("(deleted)") for line in maps.splitlines()):
                    (GROUP / "cgroup.procs").write_text(str(process.pid))
                    return
            except OSError:
                continue


def run_job(work: Path, job: Path, name: str, settings: list[str], limit: int) -> dict[str, Any]:
    """Run a job and return its figures."""
    given = [argument for setting in [*settings, f"run.name={name}"] for argument in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "shadowsync", "run", str(job), *given],
        cwd=work,
        stdout=subprocess.DEVNULL,
    )
    ended = threading.Event()
    if limit:
        threading.Thread(target=limit_node, args=(process.pid, work, limit, ended), daemon=True).start()
    code = process.wait()
    ended.set()
    assert code == 0, name
    report = read_report(work / "runs" / "latest" / "report.json")
    # Its checkpoint has as many bytes as the tables.
    shutil.rmtree(work / "runs")
    node = next(node for node in report.nodes if node.role == "embedding")
    figures: dict[str, Any] = {
        "examples_per_second": report.throughput.examples_per_second,
        "node_cpu_seconds": node.cpu_seconds,
    }
    if limit:
        figures["limited_at_bytes"] = int((GROUP / "memory.max_usage_in_bytes").read_text())
        (GROUP / "memory.max_usage_in_bytes").write_text("0")
    return figures | ({"disk": report.disk_rows[0].model_dump()} if report.disk_rows else {})


def aged_store(rows: int, memory_bytes: int, folder: Path, seconds: float, ids: str) -> dict[str, float]:
    """Look up and push rows of a table that has all been trained, and return the figures of a batch."""
    table = TableSettings(
        "id", rows, DIM, "rowwise_adagrad", 0.02, 0.05, columns=(TableColumn("id"),), folder=str(folder)
    )
    store = ShardStore(TablePlan.make([table], 1), 0, seed=1, memory_fraction=0.9, memory_bytes=memory_bytes)
    if memory_bytes:
        _, arrays = next(store.pieces())
        for start in range(0, rows, 1 << 20):
            stop = min(start + (1 << 20), rows)
            for values in arrays.values():
                values[start:stop] = np.full((stop - start, *values.shape[1:]), 0.01, np.float32)
    rng, counted = np.random.default_rng(0), 0
    before: dict[str, float] = {}
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < 2 * seconds:
        if not before and elapsed > seconds:
            before = {"seconds": elapsed, "cpu": time.process_time(), **store.disk_counts()}
        drawn = np.exp(rng.random(13_000) * np.log(rows)) if ids == "log" else rng.random(13_000) * rows
        some = np.unique((mix(drawn.astype(np.uint64)) % np.uint64(rows)).astype(np.int32))
        out = np.empty((len(some), DIM), np.float32)
        store.lookup(some, out)
        store.apply(some, np.full(out.shape, 0.01, np.float32))
        counted += bool(before)
    after = {"seconds": time.monotonic() - began, "cpu": time.process_time(), **store.disk_counts()}
    store.close()
    return {key: (after[key] - before.get(key, 0.0)) / counted for key in after}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--rows", type=int, default=2_300_000, help="of each of 26 tables: 4 GB by default")
    parser.add_argument("--kinds", nargs="*", default=["log", "uniform"])
    parser.add_argument("--memory", default="600MB")
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--aged-seconds", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"hardware": describe_hardware().model_dump(), "versions": versions()}
    for kind in options.kinds:
        name = f"{kind}-{options.rows}-{options.examples}"
        data, job = options.work / f"{name}.parquet", options.work / f"{name}.toml"
        if not data.exists():
            write_input(data, options.examples, options.rows, kind)
        write_job(job, data, options.rows)
        runs: dict[str, list[dict[str, Any]]] = {"memory": [], "disk": []}
        for number in range(options.rounds):
            if options.whole:
                runs["memory"].append(run_job(options.work, job, f"{kind}-memory-{number}", [], 0))
            on_disk = [f"embedding.memory_bytes={options.memory}", f"embedding.folder={options.work}"]
            limit = parse_size(options.limit)
            runs["disk"].append(run_job(options.work, job, f"{kind}-disk-{number}", on_disk, limit))
            print(kind, number, {name: one[-1]["examples_per_second"] for name, one in runs.items() if one})
        result[kind] = runs
        if options.whole:
            ratios = [
                disk["examples_per_second"] / memory["examples_per_second"]
                for disk, memory in zip(runs["disk"], runs["memory"], strict=True)
            ]
            result[f"{kind}_ratio"] = median(ratios)
    if options.aged_seconds:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(parse_size(options.limit)))
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        for kind in options.kinds:
            figures = aged_store(
                COLUMNS * options.rows, parse_size(options.memory), options.work, options.aged_seconds, kind
            )
            result[f"aged_{kind}"] = figures
    print(
        json.dumps({key: value for key, value in result.items() if "ratio" in key or "aged" in key}, indent=1)
    )
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
