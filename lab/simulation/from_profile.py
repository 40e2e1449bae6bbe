"""A simulation's costs from the profile of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ..capacity.demands import demands_of, require_same_model
from ..capacity.plan_job import profile_of_run


def settings_of(job: Job, profile_path: Path) -> tuple[dict[str, Any], str]:
    """Return settings from a profile and its job, and the profile's run.

    Each trainer is taken to have the cores for its workers. Raises JobFileError for a job without rounds,
    and what `require_same_model` raises.
    """
    if job.sync.algorithm == "none":
        raise JobFileError(
            'sync.algorithm: "none" given; there are no rounds to simulate', remedy="give an algorithm"
        )
    profile, path = profile_of_run(profile_path)
    demands = demands_of(profile, require_same_model(job, profile, path), path)
    sent = (demands.round_sent_bytes + demands.round_received_bytes) / 2
    if not sent:
        raise JobFileError("the profile has no complete round", where=path, remedy="profile for longer")
    settings: dict[str, Any] = {
        "sync_nodes": max(1, job.sync_nodes),
        "mode": job.sync.mode,
        "every": job.sync.every,
        "duty": job.sync.duty,
        "gap": job.sync.gap,
        "step_seconds": demands.step_seconds / job.trainer.workers,
        "round_cpu_seconds": demands.round_cpu_seconds,
        "model_bytes": sent,
        "center_seconds_per_byte": demands.center_seconds / sent,
    }
    if job.sync.algorithm == "decoupled":
        options = dict(job.sync.options)
        known = {key: options[key] for key in ("grace", "longest_wait_seconds") if key in options}
        quorum = options.get("quorum", "half")
        settings |= known | {"merges": True, "quorum": 0 if quorum == "half" else quorum}
    if job.checkpoint.every_seconds:
        settings["checkpoint_seconds"] = job.checkpoint.every_seconds
    return settings, profile.measured.run
