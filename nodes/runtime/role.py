"""What each role adds to a node: its listener, its requests, its metrics."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import zmq

from ...pipeline.config.job import Job
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.wire.conversation import Conversation
from ...pipeline.wire.sockets import Listener


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One node of the job, as the others know it."""

    name: str
    role: str
    index: int
    token: str
    endpoint: str

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> MemberInfo:
        """Read the body of a message."""
        return cls(
            name=str(body["name"]),
            role=str(body["role"]),
            index=int(body["index"]),
            token=str(body["token"]),
            endpoint=str(body["endpoint"]),
        )


@dataclass
class NodeContext:
    """What a role gets of its node. Any thread may call `fail`, the control thread the rest."""

    job: Job
    name: str
    index: int
    token: str
    folder: str
    zmq_context: zmq.Context[zmq.Socket[bytes]]
    coordinator: Conversation
    plan: TablePlan
    fail: Callable[[BaseException], None]


class Role(ABC):
    """One role of a node. All methods are called on the control thread, whose asyncio loop never blocks."""

    name: ClassVar[str]
    repeatable: ClassVar[frozenset[str]] = frozenset()
    """What only reads, so that its answers, which may be large, are not remembered: asked again it is done
    again."""

    @abstractmethod
    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the role's socket and return the bound endpoint; empty if it only connects."""

    @abstractmethod
    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Make the node ready to meet the others; return facts for the coordinator."""

    @abstractmethod
    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Handle a request of the coordinator; return the answer's body."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return what the node measured so far, for the heartbeat: numbers, texts and lists."""

    def progress(self, examples: int) -> None:  # noqa: B027
        """Record how many examples all trainers together have trained, as the coordinator counts.

        Called with every heartbeat. Most roles need nothing of it.
        """

    def process_metrics(self) -> dict[str, float]:
        """Return CPU seconds and memory of the node's other processes, to be added to its own."""
        return {}

    def process_threads(self) -> dict[str, list[float]]:
        """Return what the threads of the node's other processes used; see `thread_figures`."""
        return {}

    async def trace_processes(self, seconds: float) -> list[dict[str, Any]]:  # noqa: ARG002
        """Trace the node's other processes for `seconds`.

        Returns for each what `Tracer.stop` does, with its name as `process`.
        """
        return []

    @abstractmethod
    async def close(self) -> None:
        """Stop threads and close sockets; called once, also after failures."""


def unknown_verb(role: str, verb: str) -> Exception:
    """Make the error for a request that a role does not know."""
    from ...pipeline.errors import ProtocolError

    return ProtocolError(f"a {role} does not know {verb!r}")


JOIN_SECONDS = 3.0


class RunningService(Protocol):
    """What a role needs of its service thread."""

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""

    def stop(self) -> None:
        """Tell the thread to return."""

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has returned."""


S = TypeVar("S", bound=RunningService)


class ServingRole(Role, Generic[S]):
    """The control side of a node whose service thread, of type S, owns its listener and its state."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._service: S | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket that others connect to."""
        self._listener = Listener(context, address)
        return self._listener.endpoint

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""
        return self._service.metrics() if self._service else {}

    async def close(self) -> None:
        """End the service thread, which closes the socket."""
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
