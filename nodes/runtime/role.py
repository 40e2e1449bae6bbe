"""Roles of a node: the listener, requests and metrics that each one adds."""

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
from ...pipeline.wire.control.base import Reply, Request
from ...pipeline.wire.control.messages import NodeFacts
from ...pipeline.wire.control.orders import ConnectPeers
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.rpc.channel import RpcChannel
from ...pipeline.wire.sockets import Listener

# Node timeouts for which a node waits for a silent coordinator, which may be paused and then continue.
SILENT_TIMEOUTS = 12
# Node timeouts for which a node waits for a coordinator that it has no connection to, and a coordinator that
# took over for a node's first message: the node may still be connecting.
GONE_TIMEOUTS = 2


@dataclass
class NodeContext:
    """A role's access to its node.

    Any thread may call `fail`, the control thread the rest.

    Attributes:
        late: whether it joins a running job.
        label_rates: rate of each label in a sample of the training rows; () if they were not needed.
        grant_key: a trainer's key of the proofs that readers were given spans.
    """

    job: Job
    name: str
    index: int
    token: str
    folder: str
    zmq_context: zmq.Context[zmq.Socket[bytes]]
    coordinator: RpcChannel
    plan: TablePlan
    fail: Callable[[BaseException], None]
    late: bool = False
    label_rates: tuple[float, ...] = ()
    grant_key: str = ""

    @property
    def patience_seconds(self) -> float:
        """Patience for the coordinator's reply, in seconds."""
        return (SILENT_TIMEOUTS + 1) * self.job.run.node_timeout_seconds


class Role(ABC):
    """One role of a node.

    All methods are called on the control thread, whose asyncio loop never blocks.

    Attributes:
        host: what the node joins, as its errors call it.
        renew: makes another role of its kind; a node without it never comes back.
    """

    name: ClassVar[str]
    host: ClassVar[str] = "coordinator"
    renew: Callable[[], Role] | None = None

    async def come_back(self) -> Role:
        """Return the role with which the node joins again; end the rest.

        Called instead of `close` if the node was declared dead and lives. Others have done its work: unless a
        subclass knows better, it begins anew.
        """
        assert self.renew is not None
        await self.close()
        return self.renew()

    @abstractmethod
    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the role's socket and return its endpoint.

        The endpoint is empty if the role only connects.
        """

    @abstractmethod
    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Make the node ready to meet the others; return facts for the coordinator."""

    @abstractmethod
    async def handle(self, request: Request[Any]) -> Reply:
        """Reply to a request; raises ProtocolError for one of another role."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return the node's measurements for the heartbeat.

        The values are numbers, texts and lists.
        """

    def progress(self, examples: int) -> None:  # noqa: B027
        """Record the coordinator's count of all trainers' examples.

        Called with every heartbeat. Most roles ignore it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop threads and close sockets; called once, also after failures."""


def unexpected_request(role: str, request: Request[Any]) -> ProtocolError:
    """Make the error for a request that a role does not answer."""
    return ProtocolError(f"a {role} does not answer {CONTROL_VERBS.name_of(request)!r}")


def listener_of_trainers(
    context: zmq.Context[zmq.Socket[bytes]], address: str, largest: int, of_unadmitted: int | None = None
) -> Listener:
    """Bind a listener that accepts nothing before `admit_trainers`; raises ClusterError.

    `largest` and `of_unadmitted` are those of a `Listener`.
    """
    listener = Listener(context, address, largest, of_unadmitted)
    listener.admit(())
    return listener


def admit_trainers(listener: Listener, request: ConnectPeers) -> None:
    """Let the listener accept messages from the job's trainers only."""
    listener.admit(member.token for member in request.members if member.role == "trainer")


JOIN_SECONDS = 3.0


class RunningService(Protocol):
    """A service thread as its role uses it."""

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""

    def stop(self) -> None:
        """Tell the thread to return."""

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread; return whether it has returned."""


S = TypeVar("S", bound=RunningService)


class ServingRole(Role, Generic[S]):
    """The control side of a node whose service thread owns listener and state.

    S is the type of the service thread.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._service: S | None = None

    @abstractmethod
    def largest_message(self) -> int:
        """Return the bytes of the largest message that trainers send it."""

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket that others connect to."""
        self._listener = listener_of_trainers(context, address, self.largest_message())
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
