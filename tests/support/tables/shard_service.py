"""An embedding node's service thread over a real socket, and what a worker asks it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener


@contextmanager
def running_shard(
    context: zmq.Context[zmq.Socket[bytes]],
    failures: list[BaseException],
    plan: TablePlan,
    codecs: LinkCodecs | None = None,
    threads: int = 1,
) -> Iterator[tuple[ShardService, str]]:
    """A running service of the first node of a plan, and its endpoint."""
    listener = Listener(context, "tcp://127.0.0.1:0")
    store = ShardStore(plan, 0, seed=5, memory_fraction=0.8)
    service = ShardService(listener, store, failures.append, codecs, threads=threads)
    service.start()
    yield service, listener.endpoint
    service.stop()
    assert service.join(60.0)


def ask(connection: Connection, message: Message) -> Message:
    """Send a message; return its answer."""
    connection.send(message)
    assert connection.socket.poll(60_000), "nothing came"
    reply = connection.receive()
    assert reply is not None
    return reply
