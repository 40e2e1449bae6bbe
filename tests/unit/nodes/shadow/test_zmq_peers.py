"""Connections of the shadow thread: what is opened is closed again if the rest cannot be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from shadowsync.nodes.allreduce.round import PeerCallbacks
from shadowsync.nodes.allreduce.sockets import PeerListener, PeerSender
from shadowsync.nodes.shadow.center_connection import CenterConnection
from shadowsync.nodes.shadow.zmq_peers import ConnectionConfig
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.wire.control.orders import GroupView, MemberInfo
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.sync.peer_transports import Remembering

NUMEL = 100
FAILING = "has no address"


def _member(role: str, index: int, endpoint: str) -> MemberInfo:
    return MemberInfo(f"{role}-{index}", role, index, f"{role}-token-{index}", endpoint)


@pytest.mark.parametrize("failing", ["sync-1", "trainer-2"])
@run_by(asyncio.run)
async def test_what_was_opened_is_closed_if_the_rest_cannot_be(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open socket keeps the context from being terminated, and so the node from ending."""
    context = zmq.Context[zmq.Socket[bytes]]()
    opened: list[Any] = []

    def kept(cls: Any) -> None:
        init = cls.__init__

        def noted(self: Any, *arguments: Any, **options: Any) -> None:
            init(self, *arguments, **options)
            opened.append(self)

        monkeypatch.setattr(cls, "__init__", noted)

    kept(PeerSender)
    kept(CenterConnection)
    listener = PeerListener(context, "inproc://own")
    members = {
        f"{role}-{index}": _member(role, index, f"inproc://{role}-{index}")
        for role in ("sync", "trainer")
        for index in range(3)
    }
    members[failing] = _member(failing[:-2], int(failing[-1]), FAILING)
    algorithm = Remembering(0, NUMEL)
    monkeypatch.setattr(type(algorithm), "needs_center", True)
    job = SimpleNamespace(
        run=SimpleNamespace(seed=1),
        sync=SyncSection(),
        codecs=SimpleNamespace(center=LinkCodecs, peers=LinkCodecs),
    )
    of_trainer = cast(Any, SimpleNamespace(job=job, replica=SimpleNamespace(numel=NUMEL)))
    syncs, trainers = ([members[f"{role}-{index}"] for index in range(3)] for role in ("sync", "trainer"))
    config = ConnectionConfig(context, algorithm, syncs, trainers, 0, "token")
    callbacks = PeerCallbacks(lambda *_: None, lambda: None, lambda: None)

    with pytest.raises(zmq.ZMQError):
        config.open(of_trainer, "shadow", listener, GroupView(1, (0, 1, 2)), callbacks)
    assert listener.listener.socket.closed
    assert len(opened) >= 1
    assert [one for one in opened if not one.socket.closed] == []
    context.destroy(0)
