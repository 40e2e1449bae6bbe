"""The line between a trainer and a worker process."""

from __future__ import annotations

import pytest
import zmq
from shadowsync.nodes.worker.process_channel import WorkerChannel
from shadowsync.pipeline.errors import ProtocolError
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import Pulse, WorkerMessage
from shadowsync.tests.support.processes import wait_until

Context = zmq.Context[zmq.Socket[bytes]]


def received(pair: WorkerChannel) -> WorkerMessage:
    """The next note."""
    found: list[WorkerMessage] = []

    def come() -> bool:
        note = pair.receive()
        found.extend([note] if note is not None else [])
        return bool(found)

    wait_until(come, "a note arrives", 10.0)
    return found[0]


def test_notes_arrive_in_order_on_both_ends(context: Context) -> None:
    trainer = WorkerChannel(context)
    worker = WorkerChannel(context, trainer.endpoint)
    for number in range(100):
        assert worker.send("trained", {"number": number})
    assert [received(trainer).body["number"] for _ in range(100)] == list(range(100))
    assert trainer.receive() is None
    assert trainer.send("stop", {})
    assert received(worker) == WorkerMessage("stop", {})
    worker.close()
    trainer.close()


def test_without_another_end_nothing_is_sent_and_that_is_said(context: Context) -> None:
    trainer = WorkerChannel(context)
    assert not trainer.send("stop", {})
    trainer.close()


def test_what_is_no_note_is_refused(context: Context) -> None:
    trainer = WorkerChannel(context)
    stranger = context.socket(zmq.PAIR)
    stranger.connect(trainer.endpoint)
    stranger.send_multipart(encode(Pulse({})))
    with pytest.raises(ProtocolError, match="a pulse where only messages between a trainer and its worker"):
        wait_until(trainer.receive, "the message arrives", 10.0)
    stranger.close()
    trainer.close()
