"""The end of a node: its answer arrives, however soon it is gone, and its socket is always closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from shadowsync.nodes.runtime import process
from shadowsync.nodes.runtime.node import Node
from shadowsync.nodes.runtime.role import NodeContext, Role, unexpected_request
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.control.base import Done, Reply, Request, encode_body
from shadowsync.pipeline.wire.control.messages import HelloReply, NodeFacts, NodeFailed
from shadowsync.pipeline.wire.control.orders import Finish, FinishReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import IMPOSSIBLE, HeartbeatReply, ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.rpc.channel import MAX_ERROR_CHARACTERS
from shadowsync.pipeline.wire.schema import Message
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.real_time import run_in_real_time

JOB = job_of_tree({"data": {"format": "criteo_tsv", "path": ["x"]}})


class Idle(Role):
    """Does nothing."""

    name = "idle"

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:  # noqa: ARG002
        return ""

    async def prepare(self, node: NodeContext) -> NodeFacts:  # noqa: ARG002
        return NodeFacts()

    async def handle(self, request: Request[Any]) -> Reply:
        raise unexpected_request(self.name, request)

    def metrics(self) -> dict[str, Any]:
        return {"told": 7}

    async def close(self) -> None:
        pass


class Breaks(Idle):
    """Has a mistake in it."""

    mistake = "mistake"

    async def prepare(self, node: NodeContext) -> NodeFacts:  # noqa: ARG002
        raise KeyError(self.mistake)


class BreaksLater(Idle):
    """Has a mistake in what it does with a message."""

    def progress(self, examples: int) -> None:  # noqa: ARG002
        raise KeyError("mistake")


class EndsFirst(Node):
    """The control: it ends while it still makes up its answer."""

    async def _handle(self, request: Request[Any], number: int) -> Reply:
        reply = await super()._handle(request, number)
        await self._finished.wait()
        # It is cancelled here, unless the node is not closed.
        await asyncio.Event().wait()
        return reply


class Coordinator:
    """The other end, which reads only when the test asks for it."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self._gone = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._node = b""

    async def _next(self) -> Message:
        self._node, *frames = await self.socket.recv_multipart()
        return decode(frames)

    async def received(self, verb: str) -> RequestMessage:
        """Wait until the node asks this."""
        message = await self._next()
        while not (isinstance(message, RequestMessage) and message.verb == verb):
            message = await self._next()
        return message

    async def reply_to(self, verb: str, reply: Reply) -> None:
        """Waits until the node asks this, and answers."""
        message = await self.received(verb)
        await self.send(ReplyMessage(message.number, True, encode_body(reply)))

    async def send(self, message: Message) -> None:
        await self.socket.send_multipart([self._node, *encode(message)])

    async def message(self) -> ReplyMessage | None:
        """The answer that has come, if one has, once the node's connection is gone."""
        await self._gone.recv_multipart()
        # What came over it is there before that is told.
        while await self.socket.poll(0):
            if isinstance(message := await self._next(), ReplyMessage):
                return message
        return None

    def close(self) -> None:
        self.socket.disable_monitor()
        self._gone.close()
        self.socket.close()


@asynccontextmanager
async def coordinated() -> AsyncIterator[Coordinator]:
    """A coordinator; a node's own context has ended by the end of the block."""
    context = zmq.asyncio.Context()
    coordinator = Coordinator(context)
    try:
        yield coordinator
    finally:
        coordinator.close()
        context.term()


@pytest.fixture(autouse=True)
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process logs to one folder as long as it lives."""
    monkeypatch.setattr(process, "log_to_folder", lambda *_: None)


def begun(kind: type[Node], role: Role, coordinator: Coordinator) -> tuple[Node, asyncio.Task[ExitCode]]:
    node = kind(role, NodeSettings(job=JOB, join=coordinator.endpoint))
    return node, asyncio.create_task(node.run())


async def joined(
    kind: type[Node], role: Role, coordinator: Coordinator, folder: Path
) -> tuple[Node, asyncio.Task[ExitCode]]:
    """A node that has joined, and its life."""
    node, life = begun(kind, role, coordinator)
    plan = TablePlan.make(JOB.tables, JOB.embedding.nodes).to_body()
    await coordinator.reply_to("hello", HelloReply("idle-0", 0, str(folder), plan))
    return node, life


@pytest.mark.parametrize("kind", [Node, EndsFirst])
@run_by(run_in_real_time)
async def test_the_answer_arrives_before_the_node_is_gone(kind: type[Node], tmp_path: Path) -> None:
    async with coordinated() as coordinator:
        node, life = await joined(kind, Idle(), coordinator, tmp_path)
        await coordinator.reply_to("ready", Done())
        finish = encode_body(Finish(ExitCode.INTERRUPTED, "enough"))
        await coordinator.send(RequestMessage(1, "finish", finish))
        assert (await life, node.exit_text) == (ExitCode.INTERRUPTED, "enough")
        message = await coordinator.message()
    if kind is EndsFirst:
        assert message is None, "the control"
    else:
        assert message is not None
        reply = of_type(FinishReply, CONTROL_VERBS.decode_reply("finish", message.body))
        assert (message.number, message.ok, reply.counts["told"]) == (1, True, 7)


@pytest.mark.parametrize("length", [7, 100_000])
@run_by(run_in_real_time)
async def test_a_mistake_in_a_node_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """The others would wait for it until it has been silent for too long; a long text is cut, not refused."""
    monkeypatch.setattr(Breaks, "mistake", "mistake".ljust(length, "!"))
    async with coordinated() as coordinator:
        _, life = await joined(Node, Breaks(), coordinator, tmp_path)
        request = await coordinator.received("failed")
        await coordinator.send(ReplyMessage(request.number, True, encode_body(Done())))
        with pytest.raises(KeyError, match="mistake"):
            await life
    reported = of_type(NodeFailed, CONTROL_VERBS.decode_request(request.verb, request.body))
    assert reported.what.startswith("KeyError: 'mistake")
    assert len(reported.what) == min(len("KeyError: ''") + length, MAX_ERROR_CHARACTERS)
    assert reported.exit_code == ExitCode.INTERNAL


@run_by(run_in_real_time)
async def test_a_mistake_with_a_message_ends_the_node(tmp_path: Path) -> None:
    """It is raised in a callback of the loop, which by itself only logs it."""
    async with coordinated() as coordinator:
        node, life = await joined(Node, BreaksLater(), coordinator, tmp_path)
        await coordinator.reply_to("ready", Done())
        await coordinator.send(HeartbeatReply(examples=1, declared_dead=""))
        await coordinator.reply_to("failed", Done())
        assert (await life, node.exit_text) == (ExitCode.INTERNAL, "KeyError: 'mistake'")


@run_by(run_in_real_time)
async def test_a_node_that_sent_what_cannot_be_does_not_come_back(tmp_path: Path) -> None:
    renewed, role = list[Role](), BreaksLater()

    def renew() -> Role:
        renewed.append(BreaksLater())
        return renewed[-1]

    role.renew = renew
    async with coordinated() as coordinator:
        _, life = await joined(Node, role, coordinator, tmp_path)
        await coordinator.reply_to("ready", Done())
        await coordinator.send(HeartbeatReply(examples=1, declared_dead=f"{IMPOSSIBLE}: a lie"))
        assert await life == ExitCode.STOPPED_BY_DEATH
    assert not renewed


@run_by(run_in_real_time)
async def test_the_socket_is_closed_when_the_end_is_cancelled() -> None:
    """A context with an open socket cannot be terminated: the node's thread would wait for ever."""
    waits, may_end = asyncio.Event(), asyncio.Event()

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            waits.set()
            await may_end.wait()

    async with coordinated() as coordinator:
        node, life = begun(Node, Idle(), coordinator)
        try:
            await coordinator.received("hello")
            node._tasks.start(ends_slowly())
            await asyncio.sleep(0)
            life.cancel()
            await waits.wait()
            life.cancel()
            await asyncio.wait([life])
            may_end.set()
            assert life.cancelled()
            assert node._socket.closed
        finally:
            node._socket.close()
