"""What each role adds to a node: what it listens on, what it does when asked, what it measures.

Roles that answer at one socket: binding it, handing it to the service thread, closing both.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import zmq

from ...pipeline.config.job import Job
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ProtocolError
from ...pipeline.wire.control_base import Reply, Request
from ...pipeline.wire.control_messages import NodeFacts
from ...pipeline.wire.control_orders import ProcessTrace
from ...pipeline.wire.control_verbs import CONTROL_VERBS
from ...pipeline.wire.rpc_channel import RpcChannel
from ...pipeline.wire.sockets import Listener


@dataclass
class NodeContext:
    """What a role is given of its node. Any thread may call `fail`, the control thread the rest."""

    job: Job
    name: str
    index: int
    token: str
    folder: str
    zmq_context: zmq.Context[zmq.Socket[bytes]]
    coordinator: RpcChannel
    plan: TablePlan
    fail: Callable[[BaseException], None]


class Role(ABC):
    """One role of a node. All methods are called on the control thread, whose asyncio loop never blocks."""

    name: ClassVar[str]

    @abstractmethod
    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Binds the role's socket and gives the bound endpoint; empty if it only connects."""

    @abstractmethod
    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Makes the node ready to meet the others; gives facts for the coordinator."""

    @abstractmethod
    async def handle(self, request: Request[Any]) -> Reply:
        """Does what the coordinator asks; raises ProtocolError for what it does not answer."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """What the node measured so far, for the heartbeat: plain numbers, texts and lists."""

    def progress(self, examples: int) -> None:  # noqa: B027
        """How many examples all trainers together have trained, as the coordinator knows it; told with every
        heartbeat. Most roles need nothing of it."""

    def process_metrics(self) -> dict[str, float]:
        """CPU seconds and memory of processes that belong to the node beside its own, to be added to that."""
        return {}

    def process_threads(self) -> dict[str, list[float]]:
        """What the threads of such processes used, as `thread_figures` has it of the node's own."""
        return {}

    async def trace_processes(self, seconds: float) -> list[ProcessTrace]:  # noqa: ARG002
        """What the threads of such processes do in the next `seconds`: see `Tracer.stop`."""
        return []

    @abstractmethod
    async def close(self) -> None:
        """Stops threads and closes sockets; called once, also after failures."""


def not_answered(role: str, request: Request[Any]) -> ProtocolError:
    """The error for a request that a role does not answer."""
    return ProtocolError(f"a {role} does not answer {CONTROL_VERBS.name_of(request)!r}")


JOIN_SECONDS = 3.0


class RunningService(Protocol):
    """What a role needs of its service."""

    def metrics(self) -> dict[str, Any]:
        """See `MessageHandler.metrics`."""

    def stop(self) -> None:
        """See `Service.stop`."""

    def join(self, timeout_seconds: float) -> bool:
        """See `Service.join`."""


S = TypeVar("S", bound=RunningService)


class ServingRole(Role, Generic[S]):
    """The control side of a node whose service thread, of type S, owns its listener and its state."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._service: S | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Binds the socket that others ask at."""
        self._listener = Listener(context, address)
        return self._listener.endpoint

    def metrics(self) -> dict[str, Any]:
        """Counts so far."""
        return self._service.metrics() if self._service else {}

    async def close(self) -> None:
        """Ends the service thread, which closes the socket."""
        if self._service is not None:
            self._service.stop()
            await asyncio.to_thread(self._service.join, JOIN_SECONDS)
        elif self._listener is not None:
            self._listener.close()

    @property
    def bound(self) -> Listener:
        """The listener, after `listen`."""
        assert self._listener is not None
        return self._listener

    @property
    def service(self) -> S:
        """The service, after it was made in `prepare`."""
        assert self._service is not None
        return self._service
