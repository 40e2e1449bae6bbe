"""What a trainer answers when it cannot do what it is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.nodes.trainer import role
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.orders import ConnectPeers, GroupView
from shadowsync.sync_algos.base import PeerLost


def test_a_center_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seed(model: Any) -> None:  # noqa: ARG001
        raise PeerLost("sync-0 did not answer within 10 s")

    shadow = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(role, "Synchronizer", lambda *_: SimpleNamespace(shadow=shadow, seed=seed))
    node = SimpleNamespace(index=0, coordinator=None, patience_seconds=1.0)
    algorithm = SimpleNamespace(needs_center=True, needs_peers=False)

    async def connect() -> None:
        own = TrainerRole(cast(Any, None), cast(Any, algorithm))
        own._node, own._context = cast(Any, node), cast(Any, None)
        await own._connect_peers(ConnectPeers((), GroupView(0, ())))

    with pytest.raises(ClusterError, match="the center cannot be reached: sync-0 did not answer") as raised:
        asyncio.run(connect())
    assert "network" in raised.value.remedy
