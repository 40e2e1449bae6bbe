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
    tuner.fit()

A trial is a whole job on one machine of the cluster; give it the cores of all its nodes. Ray Tune comes with
`pip install 'ray[tune]'`.
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
from .trial_run import TRAINED, run_supervised, score_of

Report: TypeAlias = Callable[[dict[str, Any]], object]


def trainable(job_file: str | PathLike[str]) -> Callable[[dict[str, Any]], None]:
    """Return a function for `ray.tune.Tuner`.

    Its config has keys of the job file, such as `sync.gap`. It reports, about once a second, `ne` of the
    latest batches, each scored before its step, and `examples`, the trained ones; at the end the NE on
    held-out data, or without any that of training, and `scored`. If the scheduler stops the trial, its nodes
    end.

    Raises JobFileError for a job that cannot be used; the function raises it for values that the job cannot
    have, and ShadowSyncError for a trial that did not train to its end.
    """
    tree = load_job(Path(job_file)).model_dump(mode="json", by_alias=True)

    def train(config: dict[str, Any]) -> None:
        from ray import tune

        base = validate_saved_job(dict(tree), where="the job")
        train_trial(base, config, tune.report, Path(tune.get_context().get_trial_dir()))

    return train


def train_trial(base: Job, config: dict[str, Any], report: Report, folder: Path) -> None:
    """Run one trial below `folder`, and report its NE as it trains."""
    job = trial_job(base, config, "trial", str(folder.absolute()))
    seen = 0

    def tell(status: dict[str, Any]) -> bool:
        nonlocal seen
        examples, ne = status["progress"]["distinct"], status["quality"]["ne_recent"]
        if examples > seen and ne is not None and math.isfinite(ne):
            seen = examples
            report({"ne": ne, "examples": examples, "scored": False})
        return False

    code, text, found, _ = run_supervised(job, tell)
    if found is None or code not in TRAINED:
        raise ShadowSyncError(text or f"the trial ended with exit code {int(code)}")
    report({"ne": score_of(found), "examples": found.examples.distinct, "scored": True})
