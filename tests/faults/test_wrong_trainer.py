"""A trainer that says or pushes what cannot be: it costs that trainer, and not the job."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.trainer.acknowledgements import AckSender
from shadowsync.nodes.worker.embedding_client import EmbeddingClient
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.messages import Push
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
