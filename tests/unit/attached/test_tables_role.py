"""The control side of a module with tables: whose death ends it, and what it does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from shadowsync.attached.tables.role import TablesRole
from shadowsync.pipeline.errors import ClusterError, ProtocolError
from shadowsync.pipeline.wire.control.orders import NodeLost, PauseTraining


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def role(failures: list[BaseException]) -> TablesRole:
    made = TablesRole(None, 1.0, 8)
    node: Any = SimpleNamespace(fail=failures.append)
    made._node = node
    return made


def test_a_lost_embedding_node_ends_the_module(role: TablesRole, failures: list[BaseException]) -> None:
    # The control: the rows are elsewhere.
    asyncio.run(role.handle(NodeLost("token", "sync", "sync-0")))
    asyncio.run(role.handle(NodeLost("token", "trainer", "loop-1")))
    assert not failures
    asyncio.run(role.handle(NodeLost("token", "embedding", "embedding-1")))
    (failure,) = failures
    assert isinstance(failure, ClusterError)
    assert str(failure) == "embedding-1 is lost, and its rows with it"


def test_orders_of_other_roles_are_refused(role: TablesRole) -> None:
    with pytest.raises(ProtocolError, match="a client does not answer 'pause_training'"):
        asyncio.run(role.handle(PauseTraining(1, paused=True)))
