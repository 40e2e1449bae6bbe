"""An embedding node's role on a loop of its own, with one worker's connection, without a coordinator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from shadowsync.nodes.embedding.role import EmbeddingRole
from shadowsync.nodes.runtime.role import NodeContext
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.types import BatchId, Int32Array
from shadowsync.pipeline.wire.control.messages import NodeFacts
from shadowsync.pipeline.wire.control.orders import ConnectPeers, GroupView, MemberInfo, WriteCheckpoint
from shadowsync.pipeline.wire.messages import Lookup, Push, Vectors
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.expected import of_type, present

Context = zmq.Context[zmq.Socket[bytes]]
ENOUGH_SECONDS = 60.0
ROWS, DIM = 400, 4
EVERY_ROW: Int32Array = np.arange(ROWS, dtype=np.int32)


def job_of(nodes: int = 1, *, optimizer: str = "sgd", **start: Any) -> Job:
    """One table, plain SGD at a rate of 1, so that a push of ones makes every float 1 less."""
    model = {"table_rows": ROWS, "embedding_dim": DIM}
    embedding = {"optimizer": optimizer, "lr": 1.0, "nodes": nodes}
    return plain_job(1, 1, model=model, embedding=embedding, start=start)


class Node:
    """A role on a loop of its own, with a worker's connection."""

    def __init__(
        self, role: EmbeddingRole, connection: Connection, call: Callable[..., Any], facts: NodeFacts
    ) -> None:
        self.role, self.connection, self._call, self.facts = role, connection, call, facts

    def checkpoint(self, folder: Path | str, *, running: bool = False, yields: bool = False) -> Any:
        """The coordinator asks for a checkpoint, in a folder or at a URL; a future of the reply."""
        request = WriteCheckpoint(str(folder), "replicas", running=running, yields=yields)
        return self._call(self.role.handle(request))

    def call(self, message: Message) -> Message:
        self.connection.send(message)
        assert self.connection.socket.poll(int(ENOUGH_SECONDS * 1000)), "nothing came"
        return present(self.connection.receive())

    def push(self, batch: BatchId, rows: Int32Array = EVERY_ROW) -> Message:
        """A push of ones."""
        return self.call(Push(1, batch, 0, rows, np.ones(len(rows) * DIM, np.float32)))

    def look_up(self, rows: Int32Array = EVERY_ROW) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The rows as they are now."""
        reply = of_type(Vectors, self.call(Lookup(1, rows)))
        return reply.values.reshape(-1, DIM).copy()


@contextmanager
def running(context: Context, failures: list[BaseException], job: Job, index: int = 0) -> Iterator[Node]:
    """The role of embedding-`index`, prepared; `facts` is what it said of itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop)

    role = EmbeddingRole(job)
    endpoint = role.listen(context, "tcp://127.0.0.1:0")
    # It tells the coordinator nothing by itself.
    coordinator: Any = None
    plan = TablePlan.make(job.tables, job.embedding.nodes)
    name = f"embedding-{index}"
    here = NodeContext(job, name, index, "t", "", context, coordinator, plan, failures.append)
    connection = Connection(context, endpoint, "t/0")
    try:
        facts = call(role.prepare(here)).result(ENOUGH_SECONDS)
        trainer = MemberInfo("trainer-0", "trainer", 0, "t", "")
        call(role.handle(ConnectPeers((trainer,), GroupView(1, (0,))))).result(ENOUGH_SECONDS)
        yield Node(role, connection, call, facts)
    finally:
        connection.close()
        call(role.close()).result(ENOUGH_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(ENOUGH_SECONDS)
        loop.close()


Serving = Callable[..., AbstractContextManager[Node]]
