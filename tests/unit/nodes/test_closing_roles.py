"""Roles that are cancelled while they close leave no socket open: their node's context could not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias
from unittest.mock import AsyncMock, Mock

import pytest
import zmq
from shadowsync.nodes.reader import reader as reader_module
from shadowsync.nodes.reader import role as reader_role_module
from shadowsync.nodes.reader.role import ReaderRole
from shadowsync.nodes.trainer import role as trainer_module
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.wire import sockets
from shadowsync.pipeline.wire.sockets import Listener
from shadowsync.tests.support.coroutines import run_by

Join: TypeAlias = Callable[[float], bool]


def a_job() -> Job:
    return Job.model_validate({"data": {"format": "criteo_tsv", "path": ["part.tsv"]}})


class Unprepared(Exception):
    """A model cannot be built."""


async def _trainer(patch: pytest.MonkeyPatch, listener: Mock, join: Join) -> TrainerRole:
    """One that has threads, and no model yet."""
    pool = Mock(join=join, prepare=AsyncMock(side_effect=Unprepared))
    patch.setattr(trainer_module, "PeerListener", lambda *_: listener)
    patch.setattr(trainer_module, "WorkerPool", lambda *_: pool)
    role = TrainerRole(Mock(), Mock(needs_peers=True))
    role.listen(Mock(), "tcp://127.0.0.1:*")
    with pytest.raises(Unprepared):
        await role.prepare(Mock())
    return role


async def _reader(patch: pytest.MonkeyPatch, listener: Mock, join: Join) -> ReaderRole:
    """One that has begun to serve."""
    patch.setattr(reader_role_module, "listener_of_trainers", lambda *_: listener)
    patch.setattr(reader_module, "Parser", lambda *_: Mock(join=join))
    patch.setattr(reader_module, "Sender", lambda *_: Mock(serve=AsyncMock(), look_for_overdue=AsyncMock()))
    role = ReaderRole(a_job())
    role.listen(Mock(), "tcp://127.0.0.1:*")
    await role.prepare(Mock())
    return role


@pytest.mark.parametrize("make", [_trainer, _reader])
@run_by(asyncio.run)
async def test_a_role_that_is_cancelled_while_it_closes_closes_its_listener(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, joins, go = Mock(), threading.Event(), threading.Event()

    def join(seconds: float) -> bool:
        del seconds
        joins.set()
        return go.wait(60.0)

    role = await make(monkeypatch, listener, join)
    closing = asyncio.create_task(role.close())
    await asyncio.to_thread(joins.wait, 60.0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    listener.close.assert_called_once_with()
    go.set()


def test_a_listener_that_cannot_bind_for_want_of_files_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def bind(socket: Any, *_: Any) -> str:
        made.append(socket)
        raise ResourceError("too many files are open")

    monkeypatch.setattr(sockets, "bind", bind)
    context = zmq.Context[zmq.Socket[bytes]]()
    with pytest.raises(ResourceError):
        Listener(context, "tcp://127.0.0.1:*")
    assert made[0].closed
    context.term()
