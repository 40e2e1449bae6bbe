"""How soon a server has a new checkpoint: opened whole, and by what changed.

    python benchmarks/speed/following.py --rows 600000 --every-seconds 10 --checkpoints 5

A job with large tables writes checkpoints while it trains. A copy of each is kept, by hard links, until there
are enough; then the job is ended. Each checkpoint after the first is opened whole, and as the successor of
the one before it, in turn. The output is JSON: the seconds of both, and the bytes of the tables and of what
changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from shadowsync.benchmarks.job_runs import job_text, log_or_generated
from shadowsync.benchmarks.speed.checkpoints import large_tables
from shadowsync.pipeline.checkpoint.manifest import has_checkpoint, read_checkpoint
from shadowsync.pipeline.report.write import describe_hardware, versions
from shadowsync.pipeline.saved_model.model import SavedModel


def main() -> None:
    """Run the job, open its checkpoints, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="rows of each table")
    parser.add_argument("--every-seconds", type=float, default=10.0)
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--log", type=Path, help="a folder of `shadowsync generate demo-data`")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with (
        log_or_generated(options.log, 1_000_000, 1000) as log,
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
    ):
        copies = checkpoints(log, Path(folder), options)
        found = {"hardware": describe_hardware().model_dump(), "versions": versions(), **measure(copies)}
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def checkpoints(log: Path, folder: Path, options: argparse.Namespace) -> list[Path]:
    """Run a job until it has written so many checkpoints; return copies of them."""
    sections = large_tables(log, options.rows, options.every_seconds, optimizer="rowwise_adagrad")
    sections["data"]["epochs"] = 1000
    sections["run"] |= {"directory": str(folder / "runs"), "name": "followed"}
    job_file, run = folder / "job.toml", folder / "runs" / "followed"
    job_file.write_text(job_text(sections), encoding="utf-8")
    copies: list[Path] = []
    digests: set[str] = set()
    command = [sys.executable, "-m", "shadowsync.cli", "run", str(job_file), "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as job:
        try:
            while len(copies) < options.checkpoints:
                if job.poll() is not None:
                    raise RuntimeError(f"the job ended with {job.returncode}")
                time.sleep(0.2)
                if not has_checkpoint(run):
                    continue
                digest, copy = read_checkpoint(
                    run, lambda at, _: linked(at, folder / f"copy-{time.monotonic_ns()}")
                )
                if digest not in digests:
                    digests.add(digest)
                    copies.append(copy)
        finally:
            job.terminate()
    return copies


def linked(checkpoint: Path, copy: Path) -> tuple[str, Path]:
    """Link a checkpoint's files into a new folder.

    Returns its manifest's text and the folder.
    """
    copy.mkdir()
    for file in checkpoint.iterdir():
        os.link(file, copy / file.name)
    return (copy / "manifest.json").read_text("utf-8"), copy


def measure(copies: list[Path]) -> dict[str, Any]:
    """Open each checkpoint in both ways, in turn.

    All files are in the cache of the system.
    """
    for copy in copies:
        SavedModel.open(copy)
    model, steps = SavedModel.open(copies[0]), []
    for before, after in pairwise(copies):
        known = {file.stat().st_ino for file in before.iterdir()}
        new = [file.stat().st_size for file in after.glob("embedding*") if file.stat().st_ino not in known]
        began = time.perf_counter()
        whole = SavedModel.open(after)
        opened = time.perf_counter()
        model = model.newer(after)
        followed = time.perf_counter()
        for name, table in whole.tables.items():
            if not np.array_equal(table.weights, model.tables[name].weights):
                raise RuntimeError(f"table {name} differs")
        steps.append(
            {
                "new_bytes": sum(new),
                "bytes": sum(file.stat().st_size for file in after.glob("embedding*")),
                "whole_seconds": opened - began,
                "followed_seconds": followed - opened,
            }
        )
    keys = ("whole_seconds", "followed_seconds")
    return {"steps": steps, "medians": {key: median(step[key] for step in steps) for key in keys}}


if __name__ == "__main__":
    main()
