"""A job as a trainable of Ray Tune, for studies on a cluster.

    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from shadowsync.lab.tuning.ray_trainable import trainable

    scheduler = ASHAScheduler(time_attr="examples", max_t=1_000_000, grace_period=40_000, reduction_factor=3)
    tuner = tune.Tuner(
        tune.with_resources(trainable("job.toml"), {"cpu": 4}),
        param_space={"sync.gap": tune.lograndint(1, 64), "trainer.lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(metric="ne", mode="min", num_samples=30, scheduler=scheduler),
    )
    best = tuner.fit().get_best_result("score", "min")

A trial is a whole job on one machine of the cluster; give it the cores of all its nodes. Only trials that
trained to their end have a `score`. Ray Tune comes with `pip install 'ray[tune]'`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ...pipeline.config.job import Job
from ...pipeline.errors import ShadowSyncError
from ...pipeline.jobfile.load import load_job, validate_saved_job
from .space import trial_job
from .trial_run import TRAINED, require_tunable, run_supervised, score_of

Report: TypeAlias = Callable[[dict[str, Any]], object]


def trainable(job_file: str | PathLike[str]) -> Callable[[dict[str, Any]], None]:
    """Return a function for `ray.tune.Tuner`.

    Its config has keys of the job file, such as `sync.gap`. It reports, about once a second, `ne` of the
    latest batches, each scored before its step, and `examples`, the trained ones. At the end `ne` and `score`
    are the NE on held-out data, or without any that of training, and `scored` is true. If the scheduler stops
    the trial, its nodes end at once. The run's folder is in the trial's working directory, which Ray removes
    with its session.

    Raises JobFileError for a job that cannot be used; the function raises it for values that the job cannot
    have, and ShadowSyncError for a trial that did not train to its end.
    """
    job = load_job(Path(job_file))
    require_tunable(job)
    tree = job.model_dump(mode="json", by_alias=True)

    def train(config: dict[str, Any]) -> None:
        from ray import tune

        base = validate_saved_job(dict(tree), where="the job")
        # Not the trial's directory: Ray copies that to its storage again and again.
        train_trial(base, config, tune.report, Path.cwd(), f"trial-{tune.get_context().get_trial_id()}")

    return train


def train_trial(base: Job, config: dict[str, Any], report: Report, folder: Path, name: str = "trial") -> None:
    """Run one trial below `folder`, and report its NE as it trains."""
    job = trial_job(base, config, name, str(folder.absolute()))
    seen = 0

    def tell(status: dict[str, Any]) -> bool:
        nonlocal seen
        progress, ne = status["progress"], status["quality"]["ne_recent"]
        examples, total = progress["distinct"], progress["total"]
        # A scheduler takes a trial for complete at its last example, so the score is what comes with that.
        ended = total is not None and examples >= total
        if examples > seen and not ended and ne is not None and math.isfinite(ne):
            seen = examples
            report({"ne": ne, "examples": examples, "scored": False})
        return False

    code, text, found, _ = run_supervised(job, tell)
    if found is None or code not in TRAINED:
        raise ShadowSyncError(text or f"the trial ended with exit code {int(code)}")
    score = score_of(found)
    report({"ne": score, "score": score, "examples": found.examples.distinct, "scored": True})
