"""The coordinator's server on a real socket: what it refuses, counts, and survives."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from shadowsync import PROTOCOL_VERSION
from shadowsync.nodes.control.cluster_state import UNKNOWN_SENDERS
from shadowsync.nodes.control.monitoring import flat_figures
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.monitoring.status import build_status
from shadowsync.nodes.coordinator.report import _refused
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.pipeline.text.format import duration
from shadowsync.pipeline.wire.control.base import Reply, Request, encode_body
from shadowsync.pipeline.wire.control.messages import (
    ChildExited,
    GetStatus,
    Hello,
    NodeFacts,
    NodeFailed,
    Ready,
    StatusReply,
)
from shadowsync.pipeline.wire.control.orders import Begin, FinishReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import Failure, Heartbeat, HeartbeatReply, ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.schema import Message
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.expected import of_type, present
from shadowsync.tests.support.real_time import run_in_real_time

TOKEN = "token-trainer-0"
SUPERVISOR = "supervisor-secret"


class Client:
    """A node's end of the control link, which may send anything."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, identity: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt_string(zmq.IDENTITY, identity)
        self._socket.connect(endpoint)
        self._requests: set[int] = set()
        self._numbers = count(1)

    async def call(self, message: Message | list[bytes]) -> Any:
        await self.send(message)
        return await self.receive()

    async def ask(self, request: Request[Any]) -> Any:
        """The answer to a request, which has the next number."""
        return await self.call(RequestMessage(next(self._numbers), *encoded(request)))

    async def send(self, message: Message | list[bytes]) -> None:
        """Sends a message, or the frames of one."""
        await self._socket.send_multipart(message if isinstance(message, list) else encode(message))

    async def receive(self) -> Any:
        """The next message that comes, but for requests that are repeated."""
        message = decode(await self._socket.recv_multipart())
        if isinstance(message, RequestMessage):
            if message.number in self._requests:
                return await self.receive()
            self._requests.add(message.number)
        return message

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def served(
    folder: Path, identity: str = TOKEN, replies: Mapping[str, Mapping[int, Reply]] | None = None
) -> AsyncIterator[tuple[CoordinatorServer, Client]]:
    """A server whose job has two trainers and SUPERVISOR, and the client of one of them.

    With `replies` it took over from a dead one.
    """
    state = state_of(folder, [member("trainer", 0), member("trainer", 1)])
    store = LedgerWriter(LedgerStore(folder / "ledger.sqlite"))
    server = CoordinatorServer(NodeSettings(job=state.job, supervisor=SUPERVISOR), state, store)
    context = zmq.asyncio.Context()
    client = Client(context, server.listen(), identity)
    requests = RequestHandler(server)
    server.start(requests.handle, requests.died, replies)
    try:
        yield server, client
    finally:
        client.close()
        context.term()
        await server.close()
        await store.close()


def with_values(kind: str, values: list[Any]) -> list[bytes]:
    """A message of this kind with whatever values."""
    body = msgpack.packb([PROTOCOL_VERSION, kind, values, []])
    return [struct.pack("<I", zlib.crc32(body)) + body]


@run_by(run_in_real_time)
async def test_after_a_takeover_a_node_has_twice_as_long_for_its_first_message(tmp_path: Path) -> None:
    async with served(tmp_path, replies={TOKEN: {}, "token-trainer-1": {}}) as (server, client):
        members, limit = server.state.members, server.state.job.run.node_timeout_seconds
        await client.call(Heartbeat({}))
        now = asyncio.get_running_loop().time()
        server.end_silent(now + 1.5 * limit)
        heard, other = (present(members.find(token)) for token in (TOKEN, "token-trainer-1"))
        assert heard.lost_because == f"was silent for {duration(limit)}"
        assert other.alive
        server.end_silent(now + 2.5 * limit)
        assert other.lost_because == f"was silent for {duration(2 * limit)}"


@pytest.mark.parametrize("counts", [{"cpu_seconds": "x"}, {"cpu_seconds": float("nan")}, {"a": None}, 7])
@run_by(run_in_real_time)
async def test_a_heartbeat_that_is_none_is_refused_and_counted_and_the_job_goes_on(
    tmp_path: Path, counts: Any
) -> None:
    async with served(tmp_path) as (server, client):
        assert await client.call(Heartbeat({"cpu_seconds": 1.0})) == HeartbeatReply(10, "")
        refused = of_type(Failure, await client.call(with_values("heartbeat", [counts])))
        assert refused.what.startswith("heartbeat.counts")
        assert await client.call(Heartbeat({"cpu_seconds": 2.0})) == HeartbeatReply(10, "")
        assert server.state.lifecycle.stop is None
    assert server.state.refused_messages == {"trainer-0": 1}
    assert server.state.members.require(TOKEN).metrics == {"cpu_seconds": 2.0}
    assert build_status(server.state, None, 0).nodes[0].refused_messages == 1
    (event,) = _refused(server.state)
    assert (event.node, event.what) == ("coordinator", "refused messages: 1 from trainer-0; see its log")


@pytest.mark.parametrize(
    ("request_message", "why"),
    [
        (RequestMessage(1, "settle", []), "the unknown verb 'settle'"),
        (RequestMessage(1, "trained", [[], [], "x"]), "trained: synced_iterations: an integer"),
        (RequestMessage(1, "drain", [{}, False, [], False]), "a coordinator does not answer 'drain'"),
        (RequestMessage(1, "next_span", []), "a trainer may not send 'next_span'"),
    ],
)
@run_by(run_in_real_time)
async def test_a_request_that_is_none_is_answered_by_name(
    tmp_path: Path, request_message: RequestMessage, why: str
) -> None:
    async with served(tmp_path) as (server, client):
        reply = of_type(ReplyMessage, await client.call(request_message))
        assert not reply.ok
        assert why in reply.body[0]
        assert server.state.lifecycle.stop is None
    understood = request_message.verb in ("drain", "next_span")
    assert server.state.refused_messages == ({} if understood else {"trainer-0": 1})


@run_by(run_in_real_time)
async def test_a_node_that_failed_has_its_answer_and_is_dead(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, client):
        failed = RequestMessage(1, *encoded(NodeFailed("its worker died", ExitCode.STOPPED_BY_DEATH)))
        reply = of_type(ReplyMessage, await client.call(failed))
        assert reply.ok
        dead = present(server.state.members.find(TOKEN))
        assert await server.wait_for(lambda: not dead.alive, 60.0) or server.state.lifecycle.stop is not None
        assert dead.lost_because == "failed: its worker died"
        # The answer was lost, say: who asks again is told, and nothing happens twice.
        again = await client.call(failed)
        assert "was declared dead" in again.body[0]


def encoded(request: Request[Any]) -> tuple[str, list[Any]]:
    return CONTROL_VERBS.name_of(request), encode_body(request)


@pytest.mark.parametrize("sender", [TOKEN, "", "supervisor-guessed"])
@run_by(run_in_real_time)
async def test_only_the_supervisor_may_say_that_a_process_has_ended(tmp_path: Path, sender: str) -> None:
    async with served(tmp_path, sender or "anyone") as (server, client):
        for token in ("unknown", TOKEN):
            reply = await client.ask(ChildExited(token, "trainer", "exit code 0", ExitCode.OK))
            assert "only this job's supervisor may say" in reply.body[0]
        assert server.state.lifecycle.stop is None
        assert server.state.members.require(TOKEN)


@pytest.mark.parametrize(
    ("status", "code"), [(ExitCode.OK, ExitCode.STOPPED_BY_DEATH), (ExitCode.DATA, ExitCode.DATA)]
)
@run_by(run_in_real_time)
async def test_no_job_that_is_stopped_ends_well(tmp_path: Path, status: ExitCode, code: ExitCode) -> None:
    async with served(tmp_path, SUPERVISOR) as (server, client):
        assert (await client.ask(ChildExited("unknown", "trainer", "ended", status))).ok
        assert server.state.lifecycle.stop is not None
        assert server.state.lifecycle.stop.exit_code is code
        assert (await client.ask(ChildExited(TOKEN, "trainer", "signal 9", status))).ok
        dead = present(server.state.members.find(TOKEN))
        assert dead.lost_because == "died (signal 9)"


@run_by(run_in_real_time)
async def test_a_failure_is_none_without_an_exit_code(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, client):
        reply = await client.ask(NodeFailed("nothing", ExitCode.OK))
        assert "a failure needs an exit code other than 0" in reply.body[0]
        assert server.state.lifecycle.stop is None


@run_by(run_in_real_time)
async def test_a_node_that_leaves_is_told_to_end_and_not_that_it_is_dead(tmp_path: Path) -> None:
    """Its heartbeats go on until it has heard."""
    async with served(tmp_path) as (server, client):
        await client.ask(GetStatus({}, 0, False))
        leaving = server.spawn(server.dismiss(server.state.members.require(TOKEN), {}))
        finish = of_type(RequestMessage, await client.receive())
        assert finish.verb == "finish"
        assert await client.call(Heartbeat({})) == HeartbeatReply(10, "")
        await client.send(ReplyMessage(finish.number, True, encode_body(FinishReply({}))))
        await leaving
        # The control: one that has not ended for all that.
        assert await client.call(Heartbeat({})) == HeartbeatReply(10, "left the job")
    assert [member.info.index for member in server.state.members.alive("trainer")] == [1]
    assert server.state.lifecycle.stop is None


@run_by(run_in_real_time)
async def test_a_node_that_dies_before_it_answers_is_named_without_its_token(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, client):
        await client.ask(GetStatus({}, 0, False))
        node = server.state.members.require(TOKEN)
        asked = server.spawn(server.call_or_raise(node, Begin(), 60.0))
        assert (await client.receive()).verb == "begin"
        server.mark_dead(TOKEN, "was silent for 15 s")
        with pytest.raises(ClusterError) as failed:
            await asked
        assert str(failed.value) == "trainer-0: was silent for 15 s"


def test_refused_connections_are_shown_and_reported_beside_refused_messages(tmp_path: Path) -> None:
    state = state_of(tmp_path, [member("trainer", 0)])
    for number in range(2):
        state.count_refused(f"watcher-{number}")
        state.count_refused_connection()
    state.members.require(TOKEN).metrics = {"refused_messages": 1, "refused_connections": 3}
    status = build_status(state, None, 0)
    assert [(one.refused_messages, one.refused_connections) for one in status.nodes] == [(2, 2), (1, 3)]
    assert flat_figures(status)["refused_connections"] == 2
    assert {(event.node, event.what.partition(" with")[0]) for event in _refused(state)} == {
        ("coordinator", f"refused messages: 2 from {UNKNOWN_SENDERS}; see its log"),
        ("coordinator", "refused 2 connections"),
        ("trainer-0", "refused 1 message; see its log"),
        ("trainer-0", "refused 3 connections"),
    }


@pytest.mark.parametrize("silence", [1000.0, 0.0])
@run_by(run_in_real_time)
async def test_a_hello_supersedes_a_node_that_fell_silent_before_it_was_ready(
    tmp_path: Path, silence: float
) -> None:
    """What the old one still sends is refused and counted; the control: one that lives keeps its place."""
    async with served(tmp_path) as (server, client):
        members, loop = server.state.members, asyncio.get_running_loop()
        old = members.require(TOKEN)
        old.ready = False
        await client.call(Heartbeat({}))
        said = Hello("trainer", "token-new", server.state.job.digest, "", 1, "host")
        joining = server.spawn(RequestHandler(server).handle("token-new", said, 1))
        await asyncio.sleep(0)
        server.sessions.record_seen(TOKEN.encode(), loop.time() - silence)
        if not silence:
            with pytest.raises(ClusterError, match="the job already has its 2 trainer nodes"):
                await joining
            assert (await client.ask(Ready(NodeFacts()))).ok
        else:
            assert (await joining).name == old.info.name
            late = await client.ask(Ready(NodeFacts()))
            assert not late.ok
            assert "trainer-0 was declared dead (was silent for 15 s, and not ready)" in late.body[0]
            assert (await client.call(Heartbeat({}))).declared_dead == "was silent for 15 s, and not ready"
            assert [one.info.token for one in members.preparing()] == ["token-new"]
    assert server.state.refused_messages == ({UNKNOWN_SENDERS: 1} if silence else {})


@run_by(run_in_real_time)
async def test_a_silent_node_hears_first_that_it_is_dead(tmp_path: Path) -> None:
    """Otherwise it would take the refusal of what it had to say for a failure, and not come back."""
    async with served(tmp_path) as (server, client):
        server.state.start_members()
        server.mark_dead(TOKEN, "was silent for 15 s")
        first = await client.ask(NodeFailed("why", ExitCode.CLUSTER))
        assert first == HeartbeatReply(examples=10, declared_dead="was silent for 15 s")
        assert not (await client.receive()).ok


@run_by(run_in_real_time)
async def test_a_node_of_a_supervisor_comes_back_and_is_known_by_its_first_token(tmp_path: Path) -> None:
    async def dead(handler: RequestHandler, number: int) -> tuple[str, ...]:
        reply = of_type(StatusReply, await handler.handle(SUPERVISOR, GetStatus(), number))
        return reply.dead

    async with served(tmp_path) as (server, _):
        state, handler = server.state, RequestHandler(server)
        state.start_members()
        state.lifecycle.begin_training({})
        server.mark_dead(TOKEN, "was silent for 15 s")
        assert await dead(handler, 1) == (TOKEN,)
        said = Hello("trainer", "token-new", state.job.digest, "", 1, "host", TOKEN)
        await handler.handle("token-new", said, 1)
        assert await dead(handler, 2) == ()
        exited = ChildExited(TOKEN, "trainer", "exit code 3", ExitCode.DATA)
        await handler.handle(SUPERVISOR, exited, 3)
        heir = present(state.members.find("token-new"))
        assert heir.lost_because == "died (exit code 3)"


@run_by(run_in_real_time)
async def test_no_node_comes_back_across_an_emulated_network(tmp_path: Path) -> None:
    """The relay knows the address that it had. The control is the test above."""
    async with served(tmp_path) as (server, _):
        state = server.state
        network = state.job.network.model_copy(update={"delay": "5ms"})
        state.job = state.job.model_copy(update={"network": network})
        state.start_members()
        server.mark_dead(TOKEN, "was silent for 15 s")
        said = Hello("trainer", "token-new", state.job.digest, "", 1, "host", TOKEN)
        with pytest.raises(ClusterError, match="has no link for another node"):
            await RequestHandler(server).handle("token-new", said, 1)
