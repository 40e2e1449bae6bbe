"""A trainer or reader that says what cannot be, or pushes it: that costs the node, and not the job."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.reader.deliveries import DeliveryState
from shadowsync.nodes.reader.role import ReaderRole
from shadowsync.nodes.reader.waiting_batches import TRAINING
from shadowsync.nodes.trainer.acknowledgements import AckSender
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.nodes.worker.batches import BatchAck, InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.nodes.worker.scoring import Scoring
from shadowsync.nodes.worker.worker import Worker
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.messages import NextSpan, SpanRead
from shadowsync.pipeline.wire.control.orders import DrainReply, EvalSums, EvaluateReply
from shadowsync.pipeline.wire.messages import Delivery, Push
from shadowsync.pipeline.wire.rpc.channel import RpcChannel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.node_faults import AT, Fault, Slowed, is_here, once
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, until, wait_until
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES

LAST_ROW = 2**31 - 1


def push_of_a_stray_row(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 pushes a row that no table has."""
    send, due = EmbeddingClient._send, once("a stray row was pushed")

    def wrong(self: Any, batch: Any, shard: int, message: Any, *more: Any, **named: Any) -> None:
        if isinstance(message, Push) and is_here("trainer-1") and due():
            rows = np.full_like(message.rows, LAST_ROW)
            message, named["lease"] = dataclasses.replace(message, rows=rows), None
        send(self, batch, shard, message, *more, **named)

    patch.setattr(EmbeddingClient, "_send", wrong)


def acknowledged(**values: Any) -> Fault:
    """trainer-1 acknowledges a batch with other values."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        put, due = AckSender.put, once("a wrong acknowledgement")

        def wrong(self: AckSender, record: BatchAck) -> None:
            is_due = is_here("trainer-1") and due()
            put(self, dataclasses.replace(record, **values) if is_due else record)

        patch.setattr(AckSender, "put", wrong)

    return plant


def each_reader_has_a_span(patch: pytest.MonkeyPatch) -> None:
    """No fault, but reader-0 asks for none before reader-1 has one, so reader-1 has something to deliver."""
    call, has_one = RpcChannel.call, threading.Event()

    async def in_turn(self: RpcChannel, request: Any, *, timeout_seconds: float) -> Any:
        if isinstance(request, NextSpan) and is_here("reader-0"):
            await until(has_one.is_set, "reader-1 has a span")
        reply = await call(self, request, timeout_seconds=timeout_seconds)
        if isinstance(request, NextSpan) and is_here("reader-1"):
            has_one.set()
        return reply

    patch.setattr(RpcChannel, "call", in_turn)


def each_trainer_trains(patch: pytest.MonkeyPatch) -> None:
    """No fault, but trainer-0 trains no batch before trainer-1 has begun AT."""
    compute, begun, has_all = Worker._compute, itertools.count(1), threading.Event()

    def in_turn(self: Worker, batch: InFlightBatch) -> None:
        if batch.training and is_here("trainer-1"):
            if next(begun) == AT:
                has_all.set()
        elif batch.training:
            assert has_all.wait(ENOUGH_SECONDS)
        compute(self, batch)

    patch.setattr(Worker, "_compute", in_turn)


def each_trainer_scores(patch: pytest.MonkeyPatch) -> None:
    """No fault, but trainer-0 scores no batch before trainer-1 has one to score."""
    compute, has_one = Worker._compute, threading.Event()

    def in_turn(self: Worker, batch: InFlightBatch) -> None:
        if not batch.training and is_here("trainer-1"):
            has_one.set()
        elif not batch.training and is_here("trainer-0"):
            assert has_one.wait(ENOUGH_SECONDS)
        compute(self, batch)

    patch.setattr(Worker, "_compute", in_turn)


def replied(kind: type[Reply], **values: Any) -> Fault:
    """trainer-1 replies with other values."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        handle = TrainerRole.handle

        async def wrong(self: TrainerRole, request: Request[Any]) -> Reply:
            reply = await handle(self, request)
            is_due = isinstance(reply, kind) and is_here("trainer-1")
            return dataclasses.replace(reply, **values) if is_due else reply  # type: ignore[type-var]

        patch.setattr(TrainerRole, "handle", wrong)

    return plant


def a_span_of_too_many(patch: pytest.MonkeyPatch) -> None:
    """reader-1 says that a span has more batches than examples."""
    call, due = RpcChannel.call, once("a span of too many batches", 1)

    async def wrong(self: RpcChannel, request: Any, *, timeout_seconds: float) -> Any:
        if isinstance(request, SpanRead) and is_here("reader-1") and due():
            request = dataclasses.replace(request, batches=request.examples + 1)
        return await call(self, request, timeout_seconds=timeout_seconds)

    patch.setattr(RpcChannel, "call", wrong)


def delivered(
    node: str = "reader-1", *, scored: bool = False, **values: Callable[[Delivery], object]
) -> Fault:
    """A reader delivers one batch with other values, to train or to score."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        send, due = DeliveryState._send, once("a wrong delivery", 1 if scored else 3)

        def wrong(self: DeliveryState, worker: Any, number: int, batch: Any, now: float) -> Delivery:
            sent = send(self, worker, number, batch, now)
            if is_here(node) and (number > 0) == scored and due():
                wrong_ones: dict[str, Any] = {name: of(sent) for name, of in values.items()}
                sent = dataclasses.replace(sent, **wrong_ones)
            return sent

        patch.setattr(DeliveryState, "_send", wrong)

    return plant


def delivered_again(patch: pytest.MonkeyPatch) -> None:
    """reader-1 delivers its first batch once more, in place of its third."""
    send, due = DeliveryState._send, once("a batch was delivered again", 3)
    first: list[Batch] = []

    def wrong(self: DeliveryState, worker: Any, number: int, batch: Batch, now: float) -> Delivery:
        if is_here("reader-1") and number == TRAINING:
            first.append(batch)
            batch = first[0] if due() else batch
        return send(self, worker, number, batch, now)

    patch.setattr(DeliveryState, "_send", wrong)


def read_twice(patch: pytest.MonkeyPatch) -> None:
    """reader-1 delivers its third batch twice, to whoever asks."""
    offer, due = DeliveryState.offer, once("a batch was offered twice", 3)

    def wrong(self: DeliveryState, number: int, batch: Batch) -> None:
        offer(self, number, batch)
        if is_here("reader-1") and number == TRAINING and due():
            offer(self, number, batch)

    patch.setattr(DeliveryState, "offer", wrong)


def acknowledged_twice(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 acknowledges one delivery twice."""
    put, due = AckSender.put, once("an acknowledgement came twice")

    def wrong(self: AckSender, record: BatchAck) -> None:
        put(self, record)
        if is_here("trainer-1") and due():
            put(self, record)

    patch.setattr(AckSender, "put", wrong)


def refusing_all(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 reports every reader, whatever it delivers."""
    real = Worker._is_impossible

    def wrong(self: Worker, reader: ReaderClient, delivery: Delivery) -> bool:
        if is_here("trainer-1"):
            self._refused(reader.name, "a lie")
            return True
        return real(self, reader, delivery)

    patch.setattr(Worker, "_is_impossible", wrong)


def not_finite(delivery: Delivery) -> Any:
    return np.full_like(delivery.dense, np.nan)


def stray_rows(delivery: Delivery) -> Any:
    return np.full_like(delivery.rows, LAST_ROW)


def of_no_span(delivery: Delivery) -> Any:
    return delivery.id._replace(span=10**6)


def of_another_span(delivery: Delivery) -> Any:
    return delivery.id._replace(span=delivery.id.span ^ 1)


def beyond_its_span(delivery: Delivery) -> Any:
    return delivery.id._replace(number=10**9)


def of_zeros(delivery: Delivery) -> Any:
    return np.zeros_like(delivery.dense)


def no_labels(delivery: Delivery) -> Any:
    return np.full_like(delivery.labels, 7.0)


NO_SCORES = np.full(7, np.nan).tobytes()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (replied(DrainReply, progressive=NO_SCORES), "its scores: quality sums hold a number that is"),
        pytest.param(
            replied(EvalSums, sums=NO_SCORES),
            "its scores: quality sums hold a number that is",
            marks=pytest.mark.matrix,
        ),
        pytest.param(replied(EvalSums, sums=b"x"), "its scores: ", marks=pytest.mark.matrix),
        pytest.param(
            replied(DrainReply, applied_of=(BatchId(0, 0, 9, 9),)), "not asked for", marks=pytest.mark.matrix
        ),
    ],
    ids=["drain", "eval", "bytes", "applied"],
)
def test_a_reply_costs_the_trainer_and_not_the_job(in_process: ClusterMaker, fault: Fault, why: str) -> None:
    own = in_process(faults=(fault,)).start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    said = [event.what for event in report.events if event.node == "trainer-1"]
    assert said
    assert said[0].startswith("sent what cannot be: ")
    assert why in said[0]
    assert report.eval is not None


def scored_twice(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 counts each batch that it scores twice."""
    handle = TrainerRole.handle

    async def wrong(self: TrainerRole, request: Request[Any]) -> Reply:
        reply = await handle(self, request)
        if isinstance(reply, EvalSums) and is_here("trainer-1"):
            sums = QualitySums.from_bytes(reply.sums)
            sums.merge(QualitySums.from_bytes(reply.sums))
            reply = EvalSums(sums.to_bytes())
        return reply

    patch.setattr(TrainerRole, "handle", wrong)


def scored_more_before_its_steps(patch: pytest.MonkeyPatch) -> None:
    """trainer-1 says at the drain that it scored each batch twice."""
    handle = TrainerRole.handle

    async def wrong(self: TrainerRole, request: Request[Any]) -> Reply:
        reply = await handle(self, request)
        if isinstance(reply, DrainReply) and is_here("trainer-1"):
            sums = QualitySums.from_bytes(reply.progressive)
            sums.merge(sums)
            reply = dataclasses.replace(reply, progressive=sums.to_bytes())
        return reply

    patch.setattr(TrainerRole, "handle", wrong)


def delivered_less(patch: pytest.MonkeyPatch) -> None:
    """reader-0 says that it has delivered fewer examples to score than it did."""
    handle = ReaderRole.handle

    async def wrong(self: ReaderRole, request: Request[Any]) -> Reply:
        reply = await handle(self, request)
        if isinstance(reply, EvaluateReply) and is_here("reader-0") and reply.examples:
            reply = dataclasses.replace(reply, examples=reply.examples - 1)
        return reply

    patch.setattr(ReaderRole, "handle", wrong)


@pytest.mark.parametrize(
    ("fault", "liar"),
    [(scored_twice, "trainer-1"), pytest.param(delivered_less, "reader-0", marks=pytest.mark.matrix)],
    ids=["scored", "delivered"],
)
def test_wrong_counts_of_a_pass_cost_whoever_says_them(
    in_process: ClusterMaker, fault: Fault, liar: str
) -> None:
    own = in_process({"data": {"readers": 2}}, faults=(fault, each_trainer_scores)).start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS)
    (said,) = [event for event in report.events if event.what.startswith("sent what cannot be: ")]
    assert said.node == liar
    assert "agree only without it" in said.what
    assert own.run.evaluation.examples == EVAL_EXAMPLES


def test_a_trainer_that_scores_on_while_its_sums_are_read_is_not_wrong(in_process: ClusterMaker) -> None:
    """It does so if deliveries of a dead reader come late."""
    scored_on = []

    def scores_on(patch: pytest.MonkeyPatch) -> None:
        sums_of = Scoring.sums_of

        def late(self: Scoring, number: int) -> PassSums:
            read = sums_of(self, number)
            self.sums.add(np.zeros(1, np.float32), np.ones(1, np.float32))
            scored_on.append(number)
            return read

        patch.setattr(Scoring, "sums_of", late)

    report = finished(in_process, {"data": {"readers": 2}}, faults=(scores_on,)).report
    assert len(scored_on) >= 2
    assert report.events == []
    assert present(report.eval).examples == EVAL_EXAMPLES


@pytest.mark.matrix
def test_more_scores_than_training_had_batches_cost_the_trainer(in_process: ClusterMaker) -> None:
    changes = {"data": {"shuffle_window": 0, "split": {"progressive": 0.9}}}
    slowed = Slowed(10)
    own = in_process(changes, faults=(scored_more_before_its_steps, slowed)).start()
    # The first span is what comes before the part.
    of_the_part = "SELECT DISTINCT trainer FROM batches WHERE span > 0"
    wait_until(lambda: len(own.run.query(of_the_part)) == 2, "both trainers have batches of the part")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS)
    (said,) = [event.what for event in report.events if event.node == "trainer-1"]
    assert said.startswith("sent what cannot be: its scores: ")
    assert "it can have scored" in said
    part = present(report.train.progressive)
    assert 0 < part.examples < part.trained


@pytest.mark.matrix
def test_a_span_costs_its_reader_and_not_the_job(in_process: ClusterMaker) -> None:
    own = in_process({"data": {"readers": 2}}, faults=(a_span_of_too_many, each_reader_has_a_span)).start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    said = [event.what for event in report.events if event.node == "reader-1"]
    assert "batches of at most" in said[0]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (delivered(dense=not_finite), "a dense value is not finite"),
        pytest.param(delivered(rows=stray_rows), "a row number is beyond", marks=pytest.mark.matrix),
        pytest.param(
            delivered("reader-0", scored=True, labels=no_labels),
            "a label is neither 0 nor 1",
            marks=pytest.mark.matrix,
        ),
        pytest.param(delivered(id=of_no_span), "was not given to reader-1", marks=pytest.mark.matrix),
        (delivered(id=of_another_span), "was not given to reader-1"),
        pytest.param(delivered_again, "it was delivered before", marks=pytest.mark.matrix),
        pytest.param(read_twice, "it was delivered before", marks=pytest.mark.matrix),
    ],
    ids=["dense", "rows", "scored", "no span", "other span", "again", "twice"],
)
def test_a_delivery_costs_its_reader_and_not_the_job(
    in_process: ClusterMaker, fault: Fault, why: str
) -> None:
    own = in_process({"data": {"readers": 2}}, faults=(fault, each_reader_has_a_span))
    _require_a_dead_reader(own, why)


@pytest.mark.matrix
def test_a_batch_number_that_its_span_does_not_have_costs_one_reader(in_process: ClusterMaker) -> None:
    """Only the count of the next reader tells, which is honest."""
    faults = (delivered(id=beyond_its_span), each_reader_has_a_span)
    own = in_process({"data": {"readers": 2}}, faults=faults).start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert {event.node for event in report.events if "failed: " in event.what} == {"reader-1"}
    assert report.examples.replayed > 0
    assert any("the input does not have" in (one.unknown or "") for one in report.ledger.identities)


def _require_a_dead_reader(own: InProcessCluster, why: str) -> None:
    own.start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    (said,) = [event for event in report.events if event.what.startswith("sent what cannot be: ")]
    assert said.node.startswith("reader-")
    assert said.what.startswith("sent what cannot be: a delivery to trainer-")
    assert why in said.what
    assert not [event for event in report.events if event.node.startswith("trainer")]
    assert report.eval is not None


def test_a_delivery_that_can_be_is_trained(in_process: ClusterMaker) -> None:
    """The control: nobody can know that its numbers are not those of the file."""
    finished(in_process, {"data": {"readers": 2}}, faults=(delivered(dense=of_zeros),))


def test_false_reports_cost_one_reader_and_their_sender(in_process: ClusterMaker) -> None:
    slowed = Slowed(20)
    own = in_process({"data": {"readers": 3}}, faults=(refusing_all, slowed)).start()
    wait_until(lambda: own.run.logged("reports of two readers"), "it has reported two")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    said = [event for event in report.events if event.what.startswith("sent what cannot be: ")]
    assert sorted(event.node.partition("-")[0] for event in said) == ["reader", "trainer"]
    assert "reports of two readers" in said[1].what


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (push_of_a_stray_row, "row"),
        pytest.param(acknowledged(loss_sum=-1e300), "loss_sum", marks=pytest.mark.matrix),
        pytest.param(acknowledged_twice, "is acknowledged twice", marks=pytest.mark.matrix),
        pytest.param(acknowledged(positives=1e9), "positives of 1e+09", marks=pytest.mark.matrix),
        pytest.param(acknowledged(examples=129, weight=129.0), "at most 128", marks=pytest.mark.matrix),
    ],
    ids=["row", "loss", "twice", "positives", "examples"],
)
def test_it_costs_the_trainer_and_not_the_job(in_process: ClusterMaker, fault: Fault, why: str) -> None:
    own = in_process(faults=(fault, each_trainer_trains)).start()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    (said,) = [event.what for event in report.events if event.node == "trainer-1"]
    assert said.startswith("failed: ")
    assert why in said
