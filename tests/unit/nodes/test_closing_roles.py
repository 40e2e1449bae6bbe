"""Roles that are cancelled while they close leave no socket open: their node's context could not end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import zmq
from shadowsync.nodes.reader.reader import Reader
from shadowsync.nodes.reader.role import ReaderRole
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.wire import sockets
from shadowsync.pipeline.wire.sockets import Listener


def _trainer(listener: Mock, join: Any) -> TrainerRole:
    role = TrainerRole.__new__(TrainerRole)
    role._ack_task = role._sync = None
    role._reports, role._socket, role._pool = Mock(), listener, Mock(join=join)
    return role


def _reader(listener: Mock, join: Any) -> ReaderRole:
    async def closed() -> None:
        """Nothing runs."""

    reader = Reader.__new__(Reader)
    reader._tasks, reader._parser = Mock(close=closed), Mock(join=join)
    role = ReaderRole(Mock())
    role._listener, role._reader = listener, reader
    return role


@pytest.mark.parametrize("make", [_trainer, _reader])
def test_a_role_that_is_cancelled_while_it_closes_closes_its_listener(make: Any) -> None:
    listener, joins, go = Mock(), threading.Event(), threading.Event()

    def join(seconds: float) -> bool:
        del seconds
        joins.set()
        return go.wait(60.0)

    async def body() -> None:
        closing = asyncio.create_task(make(listener, join).close())
        await asyncio.to_thread(joins.wait, 60.0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        listener.close.assert_called_once_with()
        go.set()

    asyncio.run(body())


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
