"""How soon a server has a new checkpoint: opened whole, and by what changed.

    python benchmarks/speed/following.py --rows 600000 --every-seconds 10 --checkpoints 5

A job with large tables writes checkpoints while it trains. A copy of each is kept, by hard links, until there
are enough; then the job is ended. Two processes follow the checkpoints, one after the other: one replaces
what changed in place, and the other opens each checkpoint whole, beside the one before. The output is JSON:
the seconds and the most memory of both, how long no request could be scored, and the bytes of the tables and
of what changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
    """Follow the checkpoints in both ways, each in a process of its own.

    All files are in the cache of the system.
    """
    for copy in copies:
        SavedModel.open(copy)
    found: dict[str, Any] = {}
    for way in (in_place, beside):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found[way.__name__] = process.submit(way, copies).result()
    steps = []
    for before, after in pairwise(copies):
        known = {file.stat().st_ino for file in before.iterdir()}
        new = [file.stat().st_size for file in after.glob("embedding*") if file.stat().st_ino not in known]
        every = sum(file.stat().st_size for file in after.glob("embedding*"))
        steps.append({"new_bytes": sum(new), "bytes": every})
    if found["in_place"].pop("digest") != found["beside"].pop("digest"):
        raise RuntimeError("the tables differ")
    return {"steps": steps, **found}


def in_place(copies: list[Path]) -> dict[str, Any]:
    """Replace what changed in the memory of one model."""
    model, steps = SavedModel.open(copies[0]), []
    first = most_memory()
    for copy in copies[1:]:
        began = time.perf_counter()
        update = model.update(copy)
        read = time.perf_counter()
        model = update.apply()
        steps.append({"read_seconds": read - began, "apply_seconds": time.perf_counter() - read})
    return {"opened_bytes": first, "most_bytes": most_memory(), "steps": steps, "digest": digest(model)}


def beside(copies: list[Path]) -> dict[str, Any]:
    """Open each checkpoint whole, while the model before is there."""
    model, steps = SavedModel.open(copies[0]), []
    first = most_memory()
    for copy in copies[1:]:
        began = time.perf_counter()
        model = SavedModel.open(copy)
        steps.append({"read_seconds": time.perf_counter() - began})
    return {"opened_bytes": first, "most_bytes": most_memory(), "steps": steps, "digest": digest(model)}


def most_memory() -> int:
    """Return the most resident memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def digest(model: SavedModel) -> str:
    """Return a digest of all tables."""
    found = hashlib.sha256()
    for table in model.tables.values():
        found.update(table.weights.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main()
