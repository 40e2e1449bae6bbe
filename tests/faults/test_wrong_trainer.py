"""A trainer or reader that says what cannot be, or pushes it: that costs the node, and not the job."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.trainer.acknowledgements import AckSender
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.nodes.worker.embedding_client import EmbeddingClient
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.messages import SpanRead
from shadowsync.pipeline.wire.control.orders import DrainReply, EvalSums
from shadowsync.pipeline.wire.messages import Push
from shadowsync.pipeline.wire.rpc_channel import RpcChannel
from shadowsync.pipeline.wire.worker_messages import BatchAck
from shadowsync.tests.support.node_faults import Fault, is_here, once
from shadowsync.tests.support.resumed import ClusterMaker
from shadowsync.tests.support.runs import EXAMPLES

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


NO_SCORES = np.full(7, np.nan).tobytes()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (replied(DrainReply, progressive=NO_SCORES), "its scores: quality sums hold a number that is"),
        (replied(EvalSums, sums=NO_SCORES), "its scores: quality sums hold a number that is"),
        pytest.param(replied(EvalSums, sums=b"x"), "its scores: ", marks=pytest.mark.matrix),
        pytest.param(
            replied(DrainReply, applied_of=(BatchId(0, 0, 9, 9),)),
            "not asked for",
            marks=pytest.mark.matrix,
        ),
    ],
    ids=["drain", "eval", "bytes", "applied"],
)
def test_a_reply_costs_the_trainer_and_not_the_job(in_process: ClusterMaker, fault: Fault, why: str) -> None:
    own = in_process(faults=(fault,)).start()
    assert own.wait(90.0) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    report = own.run.report
    said = [event.what for event in report.events if event.node == "trainer-1"]
    assert said
    assert said[0].startswith("sent what cannot be: ")
    assert why in said[0]
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES
    assert report.eval is not None


def test_a_span_costs_its_reader_and_not_the_job(in_process: ClusterMaker) -> None:
    own = in_process({"data": {"readers": 2}}, faults=(a_span_of_too_many,)).start()
    assert own.wait(90.0) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    report = own.run.report
    said = [event.what for event in report.events if event.node == "reader-1"]
    assert "batches of at most" in said[0]
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (push_of_a_stray_row, "row"),
        (acknowledged(loss_sum=-1e300), "loss_sum"),
        (acknowledged(positives=1e9), "positives of 1e+09"),
        pytest.param(acknowledged(examples=129), "at most 128", marks=pytest.mark.matrix),
    ],
    ids=["row", "loss", "positives", "examples"],
)
def test_it_costs_the_trainer_and_not_the_job(in_process: ClusterMaker, fault: Fault, why: str) -> None:
    own = in_process(faults=(fault,)).start()
    assert own.wait(90.0) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    report = own.run.report
    (said,) = [event.what for event in report.events if event.node == "trainer-1"]
    assert said.startswith("failed: ")
    assert why in said
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES
