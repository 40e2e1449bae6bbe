"""What `top` says of a job that ends, and of one that it does not hear any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import zmq
import zmq.asyncio
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.clients.watched_job import show_job
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.pipeline.wire.control.base import encode_body
from shadowsync.pipeline.wire.control.messages import GetStatus, StatusReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import ReplyMessage, RequestMessage
from shadowsync.tests.support.coordinator.statuses import a_status

ENOUGH_SECONDS = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time to lose."""
    monkeypatch.setattr("shadowsync.nodes.clients.watched_job.PERIOD_SECONDS", 0.01)
    monkeypatch.setattr("shadowsync.nodes.clients.watched_job.REPLY_SECONDS", 0.1)


async def coordinate(socket: zmq.asyncio.Socket, plan: Iterable[str], asked: list[GetStatus]) -> None:
    """To each question does what comes next in the plan: "answer", "nothing" or "end"."""
    for what in plan:
        while True:
            identity, *frames = await socket.recv_multipart()
            message = decode(frames)
            if isinstance(message, RequestMessage):
                break
        request = CONTROL_VERBS.decode_request(message.verb, message.body)
        assert isinstance(request, GetStatus)
        asked.append(request)
        status = a_status(node_timeout_seconds=0.5)
        if what == "answer":
            reply = ReplyMessage(
                number=message.number, ok=True, body=encode_body(StatusReply(status.model_dump(mode="json")))
            )
            await socket.send_multipart([identity, *encode(reply)])
        elif what == "end":
            end = RequestMessage(number=1, verb="job_ended", body=["finished"])
            await socket.send_multipart([identity, *encode(end)])


class SharedContext(zmq.Context[zmq.Socket[bytes]]):
    """That of both ends, so that a test may run in virtual time; who attaches does not end it."""

    def term(self) -> None:
        pass

    def end(self) -> None:
        super().term()


def watch(plan: Iterable[str]) -> list[GetStatus]:
    """Attaches to a coordinator of this plan; gives what it was asked."""
    asked: list[GetStatus] = []

    async def main() -> None:
        context = SharedContext()
        socket = zmq.asyncio.Context(context).socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("inproc://coordinator")
        serving = asyncio.create_task(coordinate(socket, plan, asked))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("shadowsync.pipeline.wire.rpc.client.zmq.Context", lambda: context)
                clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
                patch.setattr("shadowsync.nodes.clients.watched_job.time", clock)
                attached = show_job("inproc://coordinator", once=False, as_json=False)
                await asyncio.wait_for(attached, ENOUGH_SECONDS)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            socket.close()
            context.end()

    run_in_virtual_time(main())
    return asked


def test_a_job_that_tells_its_end_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    asked = watch(["answer", "answer", "end"])
    assert capsys.readouterr().err == "a-job has ended: finished\n"
    assert all(request.subscribe_end for request in asked)


def test_a_job_that_is_not_heard_has_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClusterError, match=r"no answer for \d+ s; a-job was training") as caught:
        watch(["answer", "answer"])
    assert caught.value.exit_code is ExitCode.CLUSTER
    said = capsys.readouterr().err
    assert "no answer for 0 s; a-job was training" in said
    assert "ended" not in said


def test_a_job_that_is_heard_again_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    watch(["answer", "nothing", "answer", "end"])
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("no answer for")
    assert last == "a-job has ended: finished"
