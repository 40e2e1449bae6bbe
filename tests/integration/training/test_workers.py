"""Whole jobs whose trainers have several workers, and what a worker scores and when."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import zmq
from shadowsync.nodes.reader.deliveries import DeliveryState
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.nodes.worker.scoring import Scoring
from shadowsync.nodes.worker.step import Stepper
from shadowsync.nodes.worker.worker import Worker
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import Fault, is_here
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES, RunFolder

Changes = Mapping[str, Mapping[str, Any]]


def run(cluster: ClusterMaker, changes: Changes, name: str, faults: Sequence[Fault] = ()) -> RunFolder:
    """A finished job of this name."""
    return finished(cluster, {**changes, "run": {"name": name}}, faults=faults)


def worker_iterations(run: RunFolder, trainer: str) -> list[int]:
    """Steps of each worker of a trainer, as its checkpoint has them."""
    folder, manifest = open_checkpoint(run.folder, verify=True)
    (entry,) = (entry for entry in manifest.files if entry.role == trainer)
    return [
        int(count) for count in TensorReader(folder, [entry]).metadata[entry.name]["iterations"].split(",")
    ]


def both_are_served(patch: pytest.MonkeyPatch) -> None:
    """No fault, but a reader that delivers nothing before two workers have asked for batches.

    A worker that is late could find that the other one has trained them all.
    """
    deliveries, begun = DeliveryState.deliveries, threading.Event()

    def held_back(self: DeliveryState, now: float) -> list[tuple[bytes, Delivery]]:
        if len(self._workers) == 2 and self.queued >= 2:
            begun.set()
        return deliveries(self, now) if begun.is_set() else []

    patch.setattr(DeliveryState, "deliveries", held_back)


def weights_come_after_batches(patch: pytest.MonkeyPatch) -> None:
    """A worker is told to score a pass when batches of it are here, as a busy one may be."""
    accept, report, evaluate = ReaderClient.accept, Worker._report, Worker.evaluate
    is_here = threading.Event()

    def accepted(self: ReaderClient, delivery: Delivery) -> bool:
        if delivery.pass_number:
            is_here.set()
        return accept(self, delivery)

    def reported(self: Worker) -> None:
        # Has looked at what is here.
        if is_here.is_set():
            for told in self.__dict__.pop("late", []):
                evaluate(self, *told)
        report(self)

    def told_late(self: Worker, pass_number: int, flat: torch.Tensor) -> None:
        self.__dict__.setdefault("late", []).append((pass_number, flat))

    patch.setattr(ReaderClient, "accept", accepted)
    patch.setattr(Worker, "_report", reported)
    patch.setattr(Worker, "evaluate", told_late)


def test_held_out_batches_wait_for_the_weights(cluster: ClusterMaker) -> None:
    changes = {"trainer": {"count": 1}}
    late = run(cluster, changes, "late", [weights_come_after_batches])
    assert late.evaluation.examples == EVAL_EXAMPLES


def one_batch_is_not_scored(patch: pytest.MonkeyPatch) -> None:
    """A worker drops the first batch of each pass."""
    score = Scoring.score

    def scored(self: Scoring, batch: InFlightBatch, stepper: Stepper) -> None:
        dropped = self.__dict__.setdefault("dropped", {})
        if dropped.setdefault(batch.delivery.pass_number, batch) is not batch:
            score(self, batch, stepper)

    patch.setattr(Scoring, "score", scored)


def one_batch_is_once_not_scored(patch: pytest.MonkeyPatch) -> None:
    """A worker drops the first batch of its first pass."""
    score = Scoring.score

    def scored(self: Scoring, batch: InFlightBatch, stepper: Stepper) -> None:
        if self.__dict__.setdefault("dropped", batch) is not batch:
            score(self, batch, stepper)

    patch.setattr(Scoring, "score", scored)


@pytest.mark.matrix
def test_examples_without_a_score_are_told(cluster: ClusterMaker) -> None:
    own = cluster({"trainer": {"count": 1}}, faults=[one_batch_is_not_scored]).start()
    assert own.wait() == ExitCode.CLUSTER
    assert re.search(
        rf"scored 3,\d+ held-out examples, but the readers delivered {EVAL_EXAMPLES:,}",
        own.coordinator.text(),
    )
    assert own.run.report.eval is None


def test_one_pass_with_too_few_scores_is_repeated(cluster: ClusterMaker) -> None:
    report = finished(cluster, {"trainer": {"count": 1}}, faults=[one_batch_is_once_not_scored]).report
    assert present(report.eval).examples == EVAL_EXAMPLES
    assert [event for event in report.events if event.what.endswith("; they are scored again")]


def test_two_workers_learn_on_one_replica(cluster: ClusterMaker) -> None:
    two = run(cluster, {"trainer": {"count": 1, "workers": 2}}, "two", [both_are_served])
    nothing = {"trainer": {"count": 1, "workers": 2, "lr": 1e-9}, "embedding": {"lr": 1e-9}}
    untrained = run(cluster, nothing, "untrained")
    assert two.report.examples.distinct == two.report.examples.trained == EXAMPLES
    assert two.report.ledger.shard_applied == {"embedding-0": two.batches()}
    assert two.report.sync.rounds > 0
    learned, control = [score.auc for score in (two.report.eval, untrained.report.eval) if score is not None]
    # Not NE: how far the center is when so short a job ends depends on how busy the machine was. It is 0.65,
    # and 0.46 at the first weights.
    assert present(learned) > 0.55 > 0.5 > present(control)
    # Both workers have worked on the replica.
    assert min(worker_iterations(two, "trainer-0")) > 0


@pytest.mark.matrix
@pytest.mark.parametrize(("algorithm", "trainers"), [("easgd", 2), ("ma", 2), ("decoupled", 2)])
def test_a_fixed_rate_with_several_workers(cluster: ClusterMaker, algorithm: str, trainers: int) -> None:
    sync = {"algorithm": algorithm, "mode": "fixed", "every": 5}
    done = run(cluster, {"trainer": {"count": trainers, "workers": 2}, "sync": sync}, "fixed")
    report = done.report
    assert report.examples.distinct == EXAMPLES
    steps = sum(sum(worker_iterations(done, f"trainer-{index}")) for index in range(trainers))
    assert steps == done.batches()
    # Each worker runs its own rounds with a center; all workers of a trainer share those with other trainers,
    # and those with a center that sums deltas.
    # How many more there are where rounds are shared depends on how often a worker has no input.
    assert report.sync.rounds >= (steps // 5 - 4 if algorithm == "easgd" else steps // 20)
    assert report.sync.bytes > 0


def no_connections(patch: pytest.MonkeyPatch) -> None:
    """The workers of the second trainer can connect to nobody, as with an address that zmq cannot use."""
    connect = Connection.__init__

    def refuse(self: Connection, context: Any, endpoint: str, identity: str) -> None:
        if is_here("trainer-1"):
            raise zmq.ZMQError(zmq.EINVAL)
        connect(self, context, endpoint, identity)

    patch.setattr(Connection, "__init__", refuse)


def test_a_trainer_that_cannot_begin_ends_the_job_and_says_why(cluster: ClusterMaker) -> None:
    """It would live without its workers, and the job would wait for it after training."""
    own = cluster(faults=[no_connections]).start()
    assert own.wait() == ExitCode.INTERNAL, own.coordinator.text()
    assert "stopped: trainer-1: ZMQError: Invalid argument" in own.coordinator.text()
