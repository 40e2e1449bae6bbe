"""Validation while training: of a checkpoint that was saved, off the training path; the best one is kept."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.validation.scoring import CheckpointScore, CheckpointScorer
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.worker import Worker
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.report.rendering.wording import quality
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import scored_on_a_thread
from shadowsync.tests.support.jobs.processes import until
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES
from shadowsync.tests.support.real_time import ENOUGH_SECONDS

EVERY = 6_000
# Batches of an epoch; after some of these held-out examples are scored worse.
AHEAD = EXAMPLES // 128


def an_epoch_ahead(patch: pytest.MonkeyPatch) -> None:
    """No fault, but training that gets AHEAD batches further while a checkpoint is scored, and then waits.

    How far it would get otherwise is up to the machine, and nothing here is about it.
    """
    compute, drain, score = Worker._compute, Worker.drain, CheckpointScorer.score
    changed = threading.Condition()
    left, ended = math.inf, False

    def allow(batches: float) -> None:
        nonlocal left
        with changed:
            left = batches
            changed.notify_all()

    async def score_and_allow(
        scorer: CheckpointScorer, checkpoint: Path, spans: Sequence[Span]
    ) -> CheckpointScore:
        allow(AHEAD)
        try:
            await until(lambda: left <= 0 or ended, "training gets so far, or ends", ENOUGH_SECONDS)
            return await score(scorer, checkpoint, spans)
        finally:
            allow(math.inf)

    def compute_if_allowed(worker: Worker, batch: InFlightBatch) -> None:
        nonlocal left
        if batch.training:
            with changed:
                changed.wait_for(lambda: left > 0, ENOUGH_SECONDS)
                left -= 1
        compute(worker, batch)

    def end(worker: Worker, *arguments: Any, **more: Any) -> None:
        nonlocal ended
        ended = True
        drain(worker, *arguments, **more)

    patch.setattr(Worker, "drain", end)
    patch.setattr(CheckpointScorer, "score", score_and_allow)
    patch.setattr(Worker, "_compute", compute_if_allowed)


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_the_best_checkpoint_is_kept_and_training_ends_early(
    cluster: ClusterMaker, validation_file: str
) -> None:
    """Tables that learn by heart: after a few epochs held-out examples are scored ever worse."""
    own = cluster(
        {
            "data": {"epochs": 10_000, "validation_path": validation_file},
            "embedding": {"lr": 0.2},
            "validation": {"every_examples": EVERY, "patience": 1},
        },
        faults=(an_epoch_ahead, scored_on_a_thread),
    ).start()
    assert own.wait(180.0) == 0, own.coordinator.text()
    report = own.ended()
    assert report.outcome.startswith("finished early: 1 validation did not improve on ne")
    counted, points = report.examples, report.curves.validation
    assert counted.read - counted.trained == counted.in_flight
    assert counted.trained == counted.distinct < 10_000 * EXAMPLES
    assert report.checkpoints is not None
    assert report.checkpoints.failed == 0
    # The last one is the checkpoint of the end.
    assert report.validation is not None
    assert report.validation.count == len(points)
    # Each of the others was scored, or skipped because it waited when the decision fell; one may have been
    # taken at that moment.
    scored = len(points) - 1
    assert scored <= report.checkpoints.written <= scored + report.validation.skipped + 1
    assert [at for at, _ in points] == sorted({at for at, _ in points})
    assert points[-1][0] == counted.distinct
    # The one before it decided, and no later one was scored meanwhile.
    assert points[-2][1] > points[-3][1]
    # An epoch at the least; a batch at the end of a span has fewer examples.
    assert points[-1][0] - points[-2][0] > EXAMPLES / 2, "training did not wait"
    # The best is the lowest, it is the one in best/, and it scores there what was said of it.
    best_at, best = min(((int(at), value) for at, value in points), key=lambda point: point[1])
    assert (report.validation.best_examples, report.validation.best) == (best_at, best)
    assert not report.validation.best_is_last
    _, manifest = open_checkpoint(own.run.folder, verify=True, which="best")
    assert manifest.examples_trained == best_at
    offline = evaluate_run(own.run.folder, [validation_file], "best")
    assert offline["ne"] == pytest.approx(best, abs=1e-12)
    assert offline["examples"] == EVAL_EXAMPLES
    # It is what is used where nothing is said, and what the report is headed by.
    assert evaluate_run(own.run.folder, [validation_file]) == offline
    assert f"after {best_at:,} examples, the best by validation (ne {best:.4f})" in offline["model"]
    assert quality(report).startswith(f"NE {best:.4f} on ")
    last = evaluate_run(own.run.folder, [validation_file], "last")
    assert last["ne"] == pytest.approx(points[-1][1], abs=1e-12)
    assert "best" not in last["model"]
    # Both are scored on the test part, and the last one is worse: that is what it was for.
    assert report.eval_last is not None
    assert f"the best by validation, after {best_at:,} examples" in own.run.evaluation.model
    assert own.run.ne == pytest.approx(best, abs=1e-12)
    assert report.eval_last.ne is not None
    assert report.eval_last.ne == pytest.approx(points[-1][1], abs=1e-12)
    assert report.eval_last.ne > best
    assert sorted(path.name for path in own.run.folder.glob("*best*")) == ["best"]


@pytest.mark.matrix
def test_training_waits_for_validations_if_told_to(cluster: ClusterMaker, validation_file: str) -> None:
    """So it ends with the checkpoint that was no better; that it does not otherwise is in the test above."""
    own = cluster(
        {
            "data": {"epochs": 10_000, "validation_path": validation_file},
            "embedding": {"lr": 0.2},
            "validation": {"every_examples": EVERY, "patience": 1, "wait": True},
        },
        faults=(scored_on_a_thread,),
    ).start()
    assert own.wait(180.0) == 0, own.coordinator.text()
    report = own.ended()
    assert report.outcome.startswith("finished early: 1 validation did not improve on ne")
    points = report.curves.validation
    assert len(points) >= 2
    # Some batches were trained before the checkpoint, and not acknowledged yet.
    assert points[-1][0] - points[-2][0] < EXAMPLES / 2
    assert report.validation is not None
    assert report.validation.skipped == 0
    assert report.validation.waited_seconds > 0
    told = (own.run.folder / "report.md").read_text("utf-8")
    assert re.search(r"Training waited .+ for validations, which the examples/s include\.", told)


@pytest.mark.matrix
def test_files_of_the_best_are_those_of_its_checkpoint(cluster: ClusterMaker, validation_file: str) -> None:
    """By hard links, where there are some: the best one costs no second copy while it is the last, too.

    It is, where only the last one is validated, as it is where there is data for it and nothing else is said.
    What is dropped in training is not dropped in scoring, or both scores would not be equal.
    """
    run = finished(
        cluster,
        {
            # A process that yields to all others hardly runs on a busy machine.
            "run": {"background_priority": "normal"},
            "data": {"validation_path": validation_file},
            "trainer": {"batch": 512},
            "model": {"dropout": 0.2, "layer_norm": True, "label_smoothing": 0.05},
            "validation": {"metric": "pr_auc"},
        },
    )
    report = run.report
    assert report.outcome == "finished"
    assert report.validation is not None
    ((examples, value),) = report.curves.validation
    assert (report.validation.best_examples, report.validation.best) == (examples, value)
    assert examples == EXAMPLES
    assert report.validation.best_is_last
    for path in (run.folder / "checkpoint").iterdir():
        assert os.path.samefile(path, run.folder / "best" / path.name)
    assert report.eval_last is None
    # All metrics are known of it, those of `shadowsync eval`.
    said = evaluate_run(run.folder, [validation_file], "best")
    metrics = report.validation.best_metrics
    assert set(metrics) == {"ne", "auc", "logloss", "calibration", "pr_auc", "lift", "calibration_error"}
    assert metrics == {name: pytest.approx(said[name], rel=1e-6) for name in metrics}
    told = (run.folder / "report.md").read_text()
    assert f"At the best checkpoint, on validation data: NE {metrics['ne']:.4f}, AUC" in told


@pytest.mark.parametrize("wait", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_the_last_checkpoint_is_validated_once(
    cluster: ClusterMaker, validation_file: str, wait: bool
) -> None:
    own = cluster(
        {
            "data": {"epochs": 3, "validation_path": validation_file},
            "trainer": {"batch": 512},
            "validation": {"every_epochs": 1, "wait": wait},
        },
        faults=(scored_on_a_thread,),
    ).start()
    assert own.wait(180.0) == 0, own.coordinator.text()
    validated = [examples for examples, _ in own.run.report.curves.validation]
    assert validated[-1] == 3 * EXAMPLES
    assert len(set(validated)) == len(validated) <= 3
    if wait:
        assert len(validated) == 3


def test_validation_without_data_is_refused(cluster: ClusterMaker, tmp_path: Path) -> None:
    coordinator = cluster({"validation": {"every_examples": 100}}).start_coordinator()
    assert coordinator.wait() == 2, coordinator.text()
    said = "[validation] is set, but the job has no data for it; set data.validation_path"
    assert said in coordinator.text()
    assert not (tmp_path / "runs").exists()
