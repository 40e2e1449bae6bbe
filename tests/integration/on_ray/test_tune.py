"""A job as a trainable of Ray Tune: real trials, of which the scheduler stops a bad one.

`make ray` runs it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from shadowsync.tests.support.on_ray.ray_jobs import EXAMPLES, RAY_TESTS, SECONDS, write_ray_job
from shadowsync.tests.support.on_ray.ray_tune import ray_studies

pytestmark = [
    *RAY_TESTS,
    pytest.mark.skipif(
        importlib.util.find_spec("pandas") is None, reason="ray[tune] is not installed: make ray installs it"
    ),
]

EPOCHS = 2
GOOD, BAD = 0.01, 3.0
# A run folder with its checkpoint has megabytes, and Ray's own records of a trial have kilobytes.
OF_RECORDS_BYTES = 1_000_000


@pytest.fixture(scope="module")
def results(ray_log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ray-tune")
    changes = {"data": {"epochs": EPOCHS}, "trainer": {"count": 1}, "embedding": {"nodes": 1}}
    job = write_ray_job(folder, ray_log, {**changes, "sync": {"algorithm": "none", "nodes": None}})
    asha = {
        "time_attr": "examples",
        "max_t": EPOCHS * EXAMPLES,
        "grace_period": 40_000,
        "reduction_factor": 2,
    }
    studies: dict[str, dict[str, Any]] = {
        "asha": {"space": {"trainer.lr": [GOOD, BAD]}, "asha": asha},
        "control": {"space": {"trainer.lr": [BAD]}},
        "wrong": {"space": {"trainer.workers": [0]}},
    }
    return ray_studies(folder, job, studies, SECONDS)


def trial(study: dict[str, Any], rate: float) -> dict[str, Any]:
    (found,) = [one for one in study["trials"] if one["chosen"]["trainer.lr"] == rate]
    assert isinstance(found, dict)
    return found


def test_a_planted_bad_rate_is_stopped_and_does_not_win(results: dict[str, Any]) -> None:
    good, bad = (trial(results["asha"], rate) for rate in (GOOD, BAD))
    assert (good["scored"], good["examples"], good["error"]) == (True, EPOCHS * EXAMPLES, "")
    assert good["score"] == good["ne"] < 1.0
    assert (bad["scored"], bad["score"], bad["error"]) == (False, None, "")
    assert 0 < bad["examples"] < EPOCHS * EXAMPLES
    assert results["asha"]["best"] == {"trainer.lr": GOOD}
    # The control: nobody stops it, and it comes out worse.
    control = trial(results["control"], BAD)
    assert (control["scored"], control["examples"]) == (True, EPOCHS * EXAMPLES)
    assert control["score"] > good["score"]


def test_a_value_that_the_job_cannot_have_is_a_failed_trial(results: dict[str, Any]) -> None:
    (failed,) = results["wrong"]["trials"]
    assert "JobFileError: the job: trainer.workers: 0 given" in failed["error"]
    assert not failed["scored"]
    assert results["wrong"]["best"] is None


def test_run_folders_are_not_copied_to_the_storage_of_ray(results: dict[str, Any]) -> None:
    for name, study in results.items():
        assert 0 < study["stored_bytes"] < OF_RECORDS_BYTES, name
