"""A node that is told to finish: its answer arrives, however soon it is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from shadowsync.nodes.runtime import process_hooks
from shadowsync.nodes.runtime.node import Node
from shadowsync.nodes.runtime.role import NodeContext, Role
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import Answer, Ask
from shadowsync.pipeline.wire.schema import Message

ENOUGH_SECONDS = 30.0


class Idle(Role):
    """Does nothing."""

    name = "idle"

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:  # noqa: ARG002
        return ""

    async def prepare(self, node: NodeContext) -> dict[str, Any]:  # noqa: ARG002
        return {}

    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError(verb, body)

    def metrics(self) -> dict[str, Any]:
        return {"told": 7}

    async def close(self) -> None:
        pass


class EndsFirst(Node):
    """The control: it ends while it still makes up its answer."""

    async def _handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._handle(verb, body)
        self._end(*self._told_end)
        await asyncio.sleep(0.01)
        return answer


class Coordinator:
    """The other end, which reads only when the test asks for it."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._node = b""

    async def _next(self) -> Message:
        self._node, *frames = await self.socket.recv_multipart()
        return decode(frames)

    async def asked(self, verb: str, body: dict[str, Any]) -> None:
        """Waits until the node asks this, and answers."""
        message = await self._next()
        while not (isinstance(message, Ask) and message.verb == verb):
            message = await self._next()
        await self.send(Answer(message.number, True, body))

    async def send(self, message: Message) -> None:
        """To the node."""
        await self.socket.send_multipart([self._node, *encode(message)])

    async def answer(self) -> Answer | None:
        """The answer that has come, if one has."""
        while await self.socket.poll(200):
            if isinstance(message := await self._next(), Answer):
                return message
        return None


async def told_to_finish(kind: type[Node], folder: Path) -> tuple[ExitCode, str, Answer | None]:
    """A node that joins and is told to finish; its answer is looked for once it is gone."""
    context = zmq.asyncio.Context()
    coordinator = Coordinator(context)
    try:
        job = job_of_tree({"data": {"format": "criteo_tsv", "path": ["x"]}})
        node = kind(Idle(), NodeSettings(job=job, join=coordinator.endpoint))
        life = asyncio.create_task(node.run())
        body: dict[str, Any] = {"name": "idle-0", "index": 0, "folder": str(folder)}
        body["plan"] = TablePlan.make(job.tables, job.embedding.nodes).to_body()
        await coordinator.asked("hello", body)
        await coordinator.asked("ready", {})
        await coordinator.send(Ask(1, "finish", {"exit_code": int(ExitCode.INTERRUPTED), "why": "enough"}))
        code = await life
        return code, node.exit_text, await coordinator.answer()
    finally:
        coordinator.socket.close()
        context.term()


@pytest.mark.parametrize("kind", [Node, EndsFirst])
def test_the_answer_arrives_before_the_node_is_gone(
    kind: type[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process logs to one folder as long as it lives.
    monkeypatch.setattr(process_hooks, "log_to_folder", lambda *_: None)

    async def main() -> tuple[ExitCode, str, Answer | None]:
        return await asyncio.wait_for(told_to_finish(kind, tmp_path), ENOUGH_SECONDS)

    code, text, answer = asyncio.run(main())
    assert (code, text) == (ExitCode.INTERRUPTED, "enough")
    if kind is EndsFirst:
        assert answer is None, "the control"
    else:
        assert answer is not None
        assert (answer.number, answer.ok, answer.body["told"]) == (1, True, 7)
