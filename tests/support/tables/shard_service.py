"""An embedding node's service thread over a real socket, and what a worker asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.expected import present


@contextmanager
def running_shard(
    context: zmq.Context[zmq.Socket[bytes]],
    failed: Callable[[BaseException], None],
    plan: TablePlan,
    codecs: LinkCodecs | None = None,
    **options: Any,
) -> Iterator[tuple[ShardService, Connection]]:
    """A running service of the first node of a plan, and the connection of worker t/0 to it."""
    listener = Listener(context, "tcp://127.0.0.1:0")
    store = ShardStore(plan, 0, seed=5, memory_fraction=0.8)
    service = ShardService(listener, store, failed, codecs, **options)
    service.start()
    connection = Connection(context, listener.endpoint, "t/0")
    try:
        yield service, connection
    finally:
        connection.close()
        service.stop()
        assert service.join(60.0)


def answer(connection: Connection) -> Message:
    """The next message that comes."""
    assert connection.socket.poll(60_000), "nothing came"
    return present(connection.receive())


def ask(connection: Connection, message: Message) -> Message:
    """Send a message; return its answer."""
    connection.send(message)
    return answer(connection)
