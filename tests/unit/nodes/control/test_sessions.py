"""Who is remembered by the coordinator, for how long, and who counts as dead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from shadowsync.lab.virtual.clock import VirtualTimeSelector
from shadowsync.nodes.control.sessions import FORGET_SECONDS, PRESENT_SECONDS, SessionRegistry
from shadowsync.nodes.runtime.main_loop import PauseAwareLoop
from shadowsync.pipeline.wire.control.base import Done, Reply, Request
from shadowsync.pipeline.wire.control.orders import NodeLost
from shadowsync.pipeline.wire.rpc.channel import RpcChannel
from shadowsync.pipeline.wire.schema import Message
from shadowsync.tests.support.coordinator.fake_coordinator import FakeServer, member
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.real_time import run_in_real_time

_UNSENT: list[Message] = []


async def _nothing(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
    return Done()


def test_who_only_watched_is_forgotten_and_nodes_are_not() -> None:
    sessions = SessionRegistry()
    for identity in (b"a-node", b"watcher-1", b"watcher-2"):
        sessions.record_seen(identity, 0.0)
        sessions.begin(identity, RpcChannel(identity.decode(), _UNSENT.append, _nothing))
    sessions.record_seen(b"watcher-2", FORGET_SECONDS)
    sessions.forget_silent(FORGET_SECONDS + 1.0, lambda token: token == "a-node")
    assert sessions.of(b"watcher-1") is None
    assert sessions.of(b"watcher-2") is not None
    assert sessions.of(b"a-node") is not None
    assert sessions.seen_at("a-node") == 0.0
    assert len(sessions) == 2


def test_of_those_who_want_to_hear_of_the_end_those_who_are_there_do() -> None:
    sessions = SessionRegistry()
    for identity in (b"gone", b"there", b"asked-once"):
        sessions.record_seen(identity, 0.0)
        sessions.begin(identity, RpcChannel(identity.decode(), _UNSENT.append, _nothing))
    sessions.watches("gone")
    sessions.watches("there")
    sessions.record_seen(b"there", PRESENT_SECONDS)
    assert [session.peer for session in sessions.watchers(PRESENT_SECONDS + 1.0)] == ["there"]


def test_a_coordinator_that_stood_still_calls_nobody_dead(tmp_path: Path) -> None:
    """What nodes sent meanwhile is in the socket, and is received before it looks again."""
    stood_seconds = [0.0]
    limit = 4.0
    virtual = VirtualTimeSelector()
    loop = PauseAwareLoop(virtual, lambda: virtual.now + stood_seconds[0])
    now = loop.time

    async def main() -> None:
        server = FakeServer(tmp_path, [member("trainer", 0)], run={"node_timeout_seconds": limit})
        own = server.state.members.require("token-trainer-0")
        server.sessions.record_seen(b"token-trainer-0", now())
        watching = asyncio.ensure_future(server._watch())
        await asyncio.sleep(0.7 * limit)
        stood_seconds[0] += 10 * limit
        await asyncio.sleep(0.5)
        assert own.alive
        server.sessions.record_seen(b"token-trainer-0", now())
        await asyncio.sleep(0.9 * limit)
        assert own.alive
        await asyncio.sleep(0.3 * limit)
        assert not own.alive, "the control: it was silent while the coordinator went on"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await server.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


@run_by(run_in_real_time)
async def test_a_death_is_told_to_those_that_have_met(tmp_path: Path) -> None:
    """A node that prepares itself has no state yet in which it could forget somebody."""
    server = FakeServer(tmp_path, [member("trainer", 0), member("trainer", 1), member("embedding", 0)])
    server.state.members.require("token-embedding-0").ready = False
    called = asyncio.Event()
    loop = asyncio.get_running_loop()

    def reply(*_: Any) -> Reply:
        loop.call_soon_threadsafe(called.set)
        return Done()

    server.reply = reply
    server.mark_dead("token-trainer-0", "died")
    await called.wait()
    assert {(name, type(request)) for name, request, _ in server.requested} == {("trainer-1", NodeLost)}
    await server.close()
