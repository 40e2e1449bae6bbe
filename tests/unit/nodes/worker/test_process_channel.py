"""The line between a trainer and a worker process."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
import zmq
from shadowsync.nodes.worker.process_channel import WorkerChannel, open_trainer_end, open_worker_end
from shadowsync.pipeline.errors import ExitCode, ProtocolError
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import Heartbeat
from shadowsync.pipeline.wire.worker_messages import ConfirmBatch, StopProcess, WorkerError, WorkerOrder
from shadowsync.tests.support.processes import wait_until

Context = zmq.Context[zmq.Socket[bytes]]


T = TypeVar("T")


def received(channel: WorkerChannel[Any, T]) -> T:
    """The next message."""
    found: list[T] = []

    def come() -> bool:
        message = channel.receive()
        found.extend([message] if message is not None else [])
        return bool(found)

    wait_until(come, "a message arrives")
    return found[0]


def test_messages_arrive_in_order_on_both_ends(context: Context) -> None:
    trainer = open_trainer_end(context)
    worker = open_worker_end(context, trainer.endpoint)
    sent = [WorkerError(str(number), ExitCode.INTERNAL) for number in range(100)]
    assert all(worker.send(message) for message in sent)
    assert [received(trainer) for _ in sent] == sent
    assert trainer.receive() is None
    orders: list[WorkerOrder] = [ConfirmBatch("reader-0", 3), StopProcess()]
    assert all(trainer.send(order) for order in orders)
    assert [received(worker) for _ in orders] == orders
    worker.close()
    trainer.close()


def test_without_another_end_nothing_is_sent_and_that_is_said(context: Context) -> None:
    trainer = open_trainer_end(context)
    assert not trainer.send(StopProcess())
    trainer.close()


def test_another_kind_of_message_is_refused(context: Context) -> None:
    trainer = open_trainer_end(context)
    stranger = context.socket(zmq.PAIR)
    stranger.connect(trainer.endpoint)
    stranger.send_multipart(encode(Heartbeat({})))
    with pytest.raises(
        ProtocolError, match="a heartbeat where only messages between a trainer and its worker"
    ):
        wait_until(trainer.receive, "the message arrives")
    stranger.close()
    trainer.close()
