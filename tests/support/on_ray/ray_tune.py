"""Trials of a job under Ray Tune, on a Ray of two CPUs of this machine.

Ray runs in a process of its own, this file as a script, since its warnings would be errors in a test's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from shadowsync.nodes.runtime.process import CLI, runs
from shadowsync.tests.support.jobs.processes import (
    MARKER,
    THREADS,
    Spawned,
    end_marked,
    marked_processes,
    wait_until,
)

OBJECT_STORE_BYTES = 80 << 20
END_SECONDS = 60.0


def ray_studies(
    folder: Path, job: Path, studies: Mapping[str, Mapping[str, Any]], seconds: float
) -> dict[str, Any]:
    """The results of studies by their names.

    A study has `space`, a list of values for each key, of which all combinations are tried, one at a time;
    and maybe `asha`, the arguments of the scheduler. Its result has its `trials`, what the `best` one chose,
    and the `stored_bytes` of Ray's storage. The nodes of all trials have ended.
    """
    asked, answer = folder / "studies.json", folder / "results.json"
    asked.write_text(json.dumps({"job": str(job), "studies": studies}), encoding="utf-8")
    marker = uuid4().hex
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "RAY_"))}
    own |= THREADS | {MARKER: marker, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    process = Spawned([sys.executable, __file__, str(asked), str(answer)], own, folder, folder / "tune.txt")
    try:
        assert process.wait(seconds) == 0, process.text()
    finally:
        process.end()
        end_marked(marker, set())
    results: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return results


def nodes_left() -> list[psutil.Process]:
    """The nodes of shadowsync that this process's Ray has started."""
    found = []
    for process in marked_processes(os.environ[MARKER]):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if runs(process.cmdline(), CLI):
                found.append(process)
    return found


def _study(job: str, folder: str, space: Mapping[str, Sequence[Any]], asha: Mapping[str, Any] | None) -> Any:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from shadowsync.lab.tuning.ray_trainable import trainable

    tuner = tune.Tuner(
        tune.with_resources(trainable(job), {"cpu": 2}),
        param_space={key: tune.grid_search(list(values)) for key, values in space.items()},
        tune_config=tune.TuneConfig(
            metric="ne", mode="min", scheduler=ASHAScheduler(**asha) if asha is not None else None
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    trials = [
        {
            "chosen": found.config,
            "error": str(found.error or ""),
            **{name: (found.metrics or {}).get(name) for name in ("ne", "score", "examples", "scored")},
        }
        for found in results
    ]
    scored = [one for one in trials if one["score"] is not None]
    best = results.get_best_result("score", "min").config if scored else None
    wait_until(lambda: not nodes_left(), "the nodes of the trials end", END_SECONDS)
    stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {"trials": trials, "best": best, "stored_bytes": stored}


def _run() -> None:
    import ray

    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ray.init("local", num_cpus=2, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False)
    results = {}
    for name, study in asked["studies"].items():
        folder = Path(sys.argv[2]).parent / name
        results[name] = _study(asked["job"], str(folder), study["space"], study.get("asha"))
    Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    _run()
