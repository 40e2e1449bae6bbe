"""Who is remembered by the coordinator, and for how long."""

from __future__ import annotations

from typing import Any

from shadowsync.nodes.coordinator.server import FORGET_SECONDS, PRESENT_SECONDS, SessionRegistry
from shadowsync.pipeline.wire.control_base import Done, Reply, Request
from shadowsync.pipeline.wire.rpc_channel import RpcChannel
from shadowsync.pipeline.wire.schema import Message

_UNSENT: list[Message] = []


async def _nothing(request: Request[Any]) -> Reply:  # noqa: ARG001
    return Done()


def test_who_only_watched_is_forgotten_and_nodes_are_not() -> None:
    talks = SessionRegistry()
    for identity in (b"a-node", b"watcher-1", b"watcher-2"):
        talks.record_seen(identity, 0.0)
        talks.begin(identity, RpcChannel(identity.decode(), _UNSENT.append, _nothing))
    talks.record_seen(b"watcher-2", FORGET_SECONDS)
    talks.forget_silent(FORGET_SECONDS + 1.0, lambda token: token == "a-node")
    assert talks.of(b"watcher-1") is None
    assert talks.of(b"watcher-2") is not None
    assert talks.of(b"a-node") is not None
    assert talks.seen_at("a-node") == 0.0
    assert len(talks) == 2


def test_of_those_who_want_to_hear_of_the_end_those_who_are_there_do() -> None:
    talks = SessionRegistry()
    for identity in (b"gone", b"there", b"asked-once"):
        talks.record_seen(identity, 0.0)
        talks.begin(identity, RpcChannel(identity.decode(), _UNSENT.append, _nothing))
    talks.watches("gone")
    talks.watches("there")
    talks.record_seen(b"there", PRESENT_SECONDS)
    assert [talk.peer for talk in talks.watchers(PRESENT_SECONDS + 1.0)] == ["there"]
