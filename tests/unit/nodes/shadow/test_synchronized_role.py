"""What a node with a replica does when it hears of the end of others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from shadowsync.nodes.shadow.synchronized_role import SynchronizedRole
from shadowsync.nodes.shadow.synchronizer import Synchronizer
from shadowsync.pipeline.wire.control.orders import NodeLost


class Told:
    """Stands for a synchronizer, and for its shadow thread."""

    def __init__(self) -> None:
        self.what: list[tuple[str, str]] = []
        self.shadow = self

    def start(self) -> None:
        self.what.append(("start", ""))

    def mark_lost(self, token: str) -> None:
        self.what.append(("sync", token))

    def drop_trainer(self, token: str, *, left: bool) -> None:
        self.what.append(("trainer that left" if left else "trainer", token))


class Role(SynchronizedRole):
    """Has nothing else."""

    listen = prepare = handle = metrics = close = replica_context = cast(Any, None)


@pytest.mark.parametrize("early", [True, False])
def test_sync_nodes_and_trainers_that_are_gone_are_told_of_once(early: bool) -> None:
    """Also if they died before there was anybody to tell it to."""
    role, told = Role(), Told()
    lost = [NodeLost(f"token-{name}", name, f"{name}-0") for name in ("reader", "sync", "trainer")]
    lost.append(NodeLost("token-other", "trainer", "trainer-1", left=True))
    if not early:
        role.start_sync(cast(Synchronizer, told))
    for one in lost:
        role.lose_peer(one)
    if early:
        role.start_sync(cast(Synchronizer, told))
    gone = [("sync", "token-sync"), ("trainer", "token-trainer"), ("trainer that left", "token-other")]
    assert told.what == [("start", ""), *gone]
