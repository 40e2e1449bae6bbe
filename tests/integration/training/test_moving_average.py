"""The moving average of the dense model: what is scored and saved, and what training goes on with."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.benchmarks.quality.data_sets.plain_loop import plain_loop
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.checkpoint.manifest import AVERAGE, DENSE, open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.models.training.optimizers import EMA_EVERY
from shadowsync.pipeline.types import Float32Array
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.resumed import folder_of, going_on, interrupted, trained_batches
from shadowsync.tests.support.jobs.runs import RunFolder, Settings

SAME_TO = 1e-5
RATE = 0.98


def plain_ne(job: Job) -> float:
    return present(plain_loop(job).test.ne)


def test_a_job_scores_the_average_that_a_plain_loop_has(cluster: ClusterMaker) -> None:
    settings: Settings = {
        "trainer": {"count": 1, "ema": RATE},
        "model": {"output_bias": -1.13},
        "sync": {"algorithm": "none"},
    }
    own = cluster(settings).start()
    own.ended()
    wanted = plain_ne(own.job)
    assert own.run.ne == pytest.approx(wanted, abs=SAME_TO)
    assert run_virtual(own.job, Timing()).ne == pytest.approx(wanted, abs=SAME_TO)
    # The control: the last model is another one.
    last = own.job.trainer.model_copy(update={"ema": None})
    assert abs(plain_ne(own.job.model_copy(update={"trainer": last})) - wanted) > 10 * SAME_TO


def tensors(run: RunFolder, role: str) -> dict[str, Float32Array]:
    folder, manifest = open_checkpoint(run.folder)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == role])
    return {name: np.array(reader.read(name)) for name in reader.names}


def flat(run: RunFolder, role: str) -> Float32Array:
    """A saved model, by `numbers`: files have parameters by name, replicas by place, with gaps."""
    return numbers(np.concatenate([values.reshape(-1) for values in tensors(run, role).values()]))


def numbers(values: Float32Array) -> Float32Array:
    """All that are not 0, sorted."""
    return np.sort(values[values != 0])


@pytest.mark.parametrize(
    "algorithm",
    ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix), pytest.param("none", marks=pytest.mark.matrix)],
)
def test_the_saved_model_is_the_mean_of_the_trainers_averages(cluster: ClusterMaker, algorithm: str) -> None:
    changes: Settings = {
        "trainer": {"ema": RATE},
        "sync": {"algorithm": algorithm, "nodes": int(algorithm == "easgd")},
    }
    own = cluster(changes).start()
    own.ended()
    run, scored = folder_of(own), own.report.eval
    parts = [tensors(run, f"trainer-{index}")["optimizer.ema"] for index in range(2)]
    first, second = parts if algorithm != "none" else (parts[0], parts[0])
    wanted = ((first + second) / 2).astype(np.float32)
    np.testing.assert_allclose(flat(run, AVERAGE), numbers(wanted), rtol=1e-6, atol=1e-7)
    assert np.abs(flat(run, AVERAGE) - flat(run, DENSE)).max() > 1e-4, "the control"
    assert scored is not None
    if algorithm != "none":
        assert scored.model == f"the moving average of the replicas' mean ({algorithm})"
        again = evaluate_run(run.folder, own.job.data.eval_path)
        assert again["ne"] == pytest.approx(scored.ne, abs=1e-6)


def test_a_resumed_run_goes_on_with_both(cluster: ClusterMaker) -> None:
    settings: Settings = {"trainer": {"count": 1, "ema": 0.9999}, "data": {"epochs": 2}}
    first = interrupted(cluster, settings, 60)
    before = tensors(first, "trainer-0")
    second = finished(cluster, going_on(settings, first))
    after = tensors(second, "trainer-0")
    assert before["optimizer.ema_updates"] == len(trained_batches(first)) // EMA_EVERY > 0
    own = len(trained_batches(second)) // EMA_EVERY
    assert after["optimizer.ema_updates"] == before["optimizer.ema_updates"] + own
