"""Channel between a trainer and a worker process, and the process's configuration."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

import zmq

from ...pipeline.config.job import Job
from ...pipeline.errors import ProtocolError
from ...pipeline.wire.endpoints import local_address
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.messages import WorkerMessage
from ...pipeline.wire.sockets import bind, configure_socket, connect
from ...pipeline.wire.worker_messages import ORDERS, REPORTS, WorkerOrder, WorkerReport, WorkerVerbs

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class WorkerChannel(Generic[Sent, Received]):
    """One end of a local socket pair, owned by one thread.

    Messages arrive in order while both ends live.

    Attributes:
        socket: the socket, for a poller.
        endpoint: the endpoint that the other end connects to.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        sent: WorkerVerbs[Sent],
        received: WorkerVerbs[Received],
        endpoint: str = "",
    ) -> None:
        """Connect to `endpoint`; without one, bind to a new one."""
        self._sent, self._received = sent, received
        self.socket = context.socket(zmq.PAIR)
        configure_socket(self.socket)
        if endpoint:
            connect(self.socket, endpoint)
            self.endpoint = endpoint
        else:
            local = local_address(f"worker-{uuid4().hex}")
            self.endpoint = bind(self.socket, local if sys.platform == "linux" else "tcp://127.0.0.1:0")

    def send(self, message: Sent) -> bool:
        """Queue a message; return False if that is impossible."""
        try:
            self.socket.send_multipart(encode(self._sent.encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Received | None:
        """Return the next message or None; raises ProtocolError."""
        try:
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        message = decode([part.buffer for part in parts])
        if not isinstance(message, WorkerMessage):
            raise ProtocolError(
                f"received a {message.KIND} where only messages between a trainer and its worker are expected"
            )
        return self._received.decode(message)

    def close(self) -> None:
        """Close the socket; queued messages get a moment to be sent."""
        self.socket.close()


def open_trainer_end(context: zmq.Context[zmq.Socket[bytes]]) -> WorkerChannel[WorkerOrder, WorkerReport]:
    """Open the trainer's end, at an endpoint of its own."""
    return WorkerChannel(context, ORDERS, REPORTS)


def open_worker_end(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str
) -> WorkerChannel[WorkerReport, WorkerOrder]:
    """Open the worker process's end."""
    return WorkerChannel(context, REPORTS, ORDERS, endpoint)


@dataclass(frozen=True)
class WorkerProcessConfig:
    """Configuration of a worker process: one line of JSON on its standard input.

    Attributes:
        job: the trainer's job.
        trainer: the trainer's name.
        trainer_index: the trainer's index.
        token: the trainer's token.
        index: the worker's index in the trainer.
        folder: the run folder.
        endpoint: the endpoint of the trainer's end of the channel.
        descriptor: inherited descriptor of the shared memory.
        plan: plan of the tables, see `TablePlan.to_body`.
        grant_key: see `NodeContext`.
    """

    job: Job
    trainer: str
    trainer_index: int
    token: str
    index: int
    folder: str
    endpoint: str
    descriptor: int
    plan: dict[str, Any]
    grant_key: str = ""

    def to_line(self) -> bytes:
        """Return the line, with its end."""
        tree = vars(self) | {"job": self.job.model_dump(mode="json")}
        return json.dumps(tree).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerProcessConfig:
        """Read a line of `to_line`; raises ValueError."""
        tree = json.loads(line)
        return cls(**tree | {"job": Job.model_validate(tree["job"])})
