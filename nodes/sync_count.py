"""How many sync nodes a job has: those of the job file if its algorithm keeps a center, else none."""

from __future__ import annotations

import json
import subprocess

from ..pipeline.config.job import Job
from ..pipeline.errors import JobFileError
from ..sync_algos.built_in import NEEDS_CENTER
from .runtime.entry_points import PROBE, python

PROBE_SECONDS = 60.0


def with_sync_nodes(job: Job, *, may_import: bool) -> Job:
    """The job with `sync.nodes` at 0 if its algorithm keeps no center; raises JobFileError for an algorithm
    that cannot be used.

    Every node does this when it reads a job file, and so all have the same job. What a built-in algorithm
    needs is known; another one is imported here if `may_import` (it brings torch), else by a child process.
    """
    needs = NEEDS_CENTER.get(job.sync.algorithm)
    if needs is None:
        needs = _imported(job.sync.algorithm) if may_import else _asked(job.sync.algorithm)
    if needs or job.sync.nodes == 0:
        return job
    return job.model_copy(update={"sync": job.sync.model_copy(update={"nodes": 0})})


def _imported(name: str) -> bool:
    from ..sync_algos.registry import AlgorithmError, find_algorithm

    try:
        return find_algorithm(name).needs_center
    except AlgorithmError as error:
        raise JobFileError(str(error)) from error


def _asked(name: str) -> bool:
    command = python(PROBE, name)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
        answer = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except subprocess.TimeoutExpired as error:
        raise JobFileError(
            f"{name!r} could not be imported in {PROBE_SECONDS:.0f} seconds", where="sync.algorithm"
        ) from error
    except ValueError as error:
        last = done.stderr.rstrip("\n").rpartition("\n")[2]
        raise JobFileError(
            f"{name!r} ended the process that imported it ({last or f'exit code {done.returncode}'})",
            where="sync.algorithm",
        ) from error
    if "error" in answer:
        raise JobFileError(str(answer["error"]))
    return bool(answer["needs_center"])
