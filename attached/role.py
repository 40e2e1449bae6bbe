"""The control side of an attached loop, on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import zmq

from ..nodes.allreduce.sockets import PeerListener
from ..nodes.replica.buffer import elements_of, write_elements
from ..nodes.replica.replica import ReplicaContext, find_device
from ..nodes.runtime.role import NodeContext, unexpected_request
from ..nodes.shadow.fixed_rate import FixedRate
from ..nodes.shadow.rounds import DueSteps
from ..nodes.shadow.synchronized_role import SynchronizedRole
from ..nodes.shadow.synchronizer import Synchronizer
from ..pipeline.config.job import Job
from ..pipeline.errors import ClusterError
from ..pipeline.jobfile.load import validate_saved_job
from ..pipeline.jobfile.named_code import code_of, require_trusted
from ..pipeline.types import Int64Array
from ..pipeline.wire.control.base import Done, Reply, ReplyType, Request
from ..pipeline.wire.control.loops import GetLoops, JoinLoops, LoopsReply, PauseLoop
from ..pipeline.wire.control.messages import Leave, NodeFacts
from ..pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    NodeLost,
    ReadReplica,
    ReplicaValues,
    WriteReplica,
)
from ..pipeline.wire.rpc.channel import ConnectionLost, RemoteError
from ..sync_algos.base import Algorithm, ModelOrigin, PeerLost, Slice
from ..sync_algos.catalog.registry import make_algorithm
from .hub.checkpoint import SINGLE_MODEL
from .parameters import LoopParameters

Start = Literal["cluster", "mine"]

REQUEST_SECONDS = 30.0
LEAVE_SECONDS = 5.0
IDLE_SECONDS = 1.0
END_SECONDS = 3.0
# A loop that leaves at the same time ends the others' closing round, which is then made again without it.
CLOSING_ROUNDS = 3
BOOK_SECONDS = 2.0
LOOK_SECONDS = 0.05

log = logging.getLogger(__name__)


class LoopRole(SynchronizedRole):
    """An attached loop as a node of its hub: replica and shadow thread.

    The hub calls it a trainer. All methods belong to the control thread, unless they say otherwise.

    Args:
        parameters: the module's, which are synchronized where they are.
        sync: settings that the hub must have.
        start: whether a late loop takes the weights of the others.
        before: the role that had this place before, and has ended: replica and counts go on.

    Attributes:
        begun: done when the loop may train; it has the error if that failed.
        over: whether the loop is no longer synchronized; any thread may read it.
        is_quiet: whether nothing synchronizes the replica any more, once the node has ended.
        finished: by count of the heartbeat, functions that give the samples that were trained.
        book: the book of steps, at most BOOK_SECONDS old.
        is_complete: whether all steps are synchronized, after `leave`.
        last_model: the algorithm's single model as of `leave`, float32 [numel]; None if it has none.
    """

    name: ClassVar[str] = "trainer"
    host: ClassVar[str] = "hub"

    def __init__(
        self,
        parameters: LoopParameters,
        sync: Mapping[str, Any],
        start: Start,
        before: LoopRole | None = None,
    ) -> None:
        super().__init__()
        self._before = before.context if before is not None else None
        self._counts_before = before.metrics() if before is not None else {}
        self._parameters, self._sync_settings, self._start = parameters, dict(sync), start
        self._node: NodeContext | None = None
        self._job: Job | None = None
        self._algorithm: Algorithm | None = None
        self._socket: PeerListener | None = None
        self._is_late = False
        self._first_model: torch.Tensor | None = None
        self._read_model: torch.Tensor | None = None
        self._asking: asyncio.Task[None] | None = None
        self.iterations: Int64Array = np.zeros(1, dtype=np.int64) if before is None else before.iterations
        self._due = DueSteps()
        self.context: ReplicaContext | None = None
        self.begun: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.over = False
        self.is_quiet = True
        self.finished: dict[str, Callable[[], int]] = {} if before is None else before.finished
        self.book: LoopsReply = LoopsReply(())
        self.is_complete = False
        self.last_model: torch.Tensor | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket for other loops; whether it is needed, the hub says later."""
        self._socket = PeerListener(context, address)
        return self._socket.endpoint

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Ask the hub for its settings, and offer the parameters; changes nothing."""
        self._node = node
        request = JoinLoops(self._parameters.shapes, self._sync_settings)
        try:
            reply = await node.coordinator.call(request, timeout_seconds=REQUEST_SECONDS)
        except ConnectionLost as error:
            raise ClusterError(f"the hub did not take the loop: {error}") from error
        job = self._job = validate_saved_job(reply.job, where="the hub's settings")
        require_trusted(
            code_of(job, "sync.algorithm"),
            "the hub's settings",
            trust=False,
            named=self._sync_settings.get("sync.algorithm", ""),
            remedy="name it in attach(algorithm=...)",
        )
        algorithm = self._algorithm = make_algorithm(job.sync.algorithm, job.sync.options)
        return NodeFacts(
            dense_elements=self._parameters.layout.numel,
            model_origin=algorithm.model.value,
            needs_center=algorithm.needs_center,
            needs_peers=algorithm.needs_peers,
        )

    @property
    def replica_context(self) -> ReplicaContext:
        assert self.context is not None
        return self.context

    @property
    def job(self) -> Job:
        """The hub's job, once the loop has begun."""
        assert self._job is not None
        return self._job

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, once the loop has begun."""
        assert self._algorithm is not None
        return self._algorithm

    @property
    def fixed(self) -> FixedRate | None:
        """The loop's part in fixed-rate rounds, for the loop's thread; None in shadow mode."""
        return self._sync.fixed[0] if self._sync is not None and self._sync.fixed else None

    async def handle(self, request: Request[Any]) -> Reply:
        """Reply to an order of the hub; raises ProtocolError for those of other roles."""
        handlers: dict[type[Request[Any]], Callable[[Any], Awaitable[Reply]]] = {
            **self.replica_handlers,
            ConnectPeers: self._connect_peers,
            Begin: self._begin,
            NodeLost: self._node_lost,
            ReadReplica: self._read_replica,
            WriteReplica: self._write_replica,
        }
        if type(request) not in handlers:
            raise unexpected_request(self.name, request)
        return await handlers[type(request)](request)

    def stepped(self) -> None:
        """Count a step; on the loop's thread."""
        self.iterations[0] += 1
        self._due.stepped(int(self.iterations[0]))

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far."""
        counts: dict[str, Any] = {"iterations": int(self.iterations.sum())}
        counts |= {name: finished() for name, finished in self.finished.items()}
        return continued(self._counts_before, self._sync.metrics() if self._sync else {}) | counts

    async def leave(self, *, closing_round: bool) -> None:
        """Make the closing round, keep the single model, and leave."""
        node, sync = self._node, self._sync
        assert node is not None
        if closing_round:
            self.is_complete = sync is None
        if sync is not None and closing_round:
            has_mean = self.algorithm.model is ModelOrigin.MEAN
            for _ in range(CLOSING_ROUNDS):
                # It makes the mean of all loops, too, where that is the model; one that leaves may end that
                # after the closing round.
                ended = await sync.finalize(closing_round=not self.is_complete)
                self.is_complete = self.is_complete or ended.complete
                if self.is_complete and (ended.ready or not has_mean):
                    break
        if sync is not None:
            sync.shadow.pause()
            # A center does not know the loop any more once it has left.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sync.shadow.wait_idle(), IDLE_SECONDS)
            if closing_round:
                self.last_model = await sync.model()
        with contextlib.suppress(ConnectionLost, RemoteError):
            self.book = await node.coordinator.call(GetLoops(), timeout_seconds=LEAVE_SECONDS)
        try:
            await node.coordinator.call(Leave(), timeout_seconds=LEAVE_SECONDS)
        except (ConnectionLost, RemoteError) as error:
            node.fail(ClusterError(f"the hub did not answer: {error}"))

    async def await_loops(self, count: int) -> None:
        """Return when so many loops have begun, those among them that have left again."""
        while True:
            self.book = await self.call(GetLoops())
            if sum(loop.state != "joining" for loop in self.book.loops) >= count:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def call(self, request: Request[ReplyType]) -> ReplyType:
        """Send the hub a request; raises ClusterError."""
        assert self._node is not None
        try:
            return await self._node.coordinator.call(request, timeout_seconds=REQUEST_SECONDS)
        except (ConnectionLost, RemoteError) as error:
            raise ClusterError(error.what, where=error.where, remedy=error.remedy) from error

    async def single_model(self) -> torch.Tensor | None:
        """Return the algorithm's single model, float32 [numel].

        Returns None if it has none, or if that cannot be had now.
        """
        if self._sync is None:
            return None
        await self._sync.finalize(closing_round=False)
        return await self._sync.model()

    @contextlib.asynccontextmanager
    async def pausing(self) -> AsyncIterator[None]:
        """Let no round change the replica within the block."""
        if self._sync is None:
            yield
            return
        if self.algorithm.needs_peers:
            await self._ask_to_pause(paused=True)
        await self._sync.shadow.hold()
        try:
            yield
        finally:
            await self._sync.shadow.release()
            if self.algorithm.needs_peers:
                await self._ask_to_pause(paused=False)

    def release(self) -> None:
        """Drop the replica and the rounds' memory, once the node has ended.

        The counts stay.
        """
        self._counts_before = self.metrics()
        self._sync, self.context, self._before = None, None, None

    async def close(self) -> None:
        """End the shadow thread."""
        self.over = True
        if self._asking is not None:
            self._asking.cancel()
        if self._sync is not None:
            self._sync.stop()
            self.is_quiet = await asyncio.to_thread(self._sync.join, END_SECONDS)
            if not self.is_quiet:
                log.error("the shadow thread did not end")
        elif self._socket is not None:
            self._socket.close()

    async def _connect_peers(self, request: ConnectPeers) -> Done:
        try:
            await self._meet(request)
        except PeerLost as error:
            raise ClusterError(f"the center cannot be reached: {error}") from error
        return Done()

    async def _meet(self, request: ConnectPeers) -> None:
        """Take what the loop begins with, and open the connections to the others."""
        node, parameters = self._node, self._parameters
        assert node is not None
        if self._before is None:
            device = find_device(str(parameters.device) if parameters.device.type == "cuda" else "cpu")
            replica = device.replica(parameters.buffer, self.iterations)
        else:
            replica = self._before.replica
        first = self._first_model
        if first is not None and self._start == "cluster":
            replica.interpolate_(replica.whole, first, 1.0)
        context = self.context = ReplicaContext(self.job, parameters.layout, replica, self.iterations)
        self._is_late = request.late
        algorithm = self.algorithm
        if not (algorithm.needs_center or algorithm.needs_peers):
            return
        socket = self._socket if algorithm.needs_peers else None
        if socket is None and self._socket is not None:
            self._socket.close()
        members = list(request.members)
        sync = Synchronizer(context, algorithm, node, members, socket, request.group, due=self._due)
        if counts := self._counts_before:
            sync.rounds.continue_from(counts["iterations"] - counts.get("gap_open", 0))
        self.start_sync(sync)
        if not request.late:
            # A checkpoint's, if the hub has resumed one.
            await sync.seed(first)
        elif algorithm.needs_center and self._start == "cluster":
            replica.interpolate_(replica.whole, (await sync.shadow.read_center())[: replica.numel], 1.0)
        self._first_model = None

    async def _begin(self, request: Begin) -> Done:  # noqa: ARG002
        assert self.context is not None
        if self._sync is not None:
            if self._is_late:
                # The replica has changed since the loop met the others.
                self.algorithm.start(self.context.replica)
            self._sync.shadow.begin()
        self._asking = asyncio.get_running_loop().create_task(self._ask_for_the_book())
        self.begun.set_result(None)
        return Done()

    async def _node_lost(self, lost: NodeLost) -> Done:
        self.lose_peer(lost)
        return Done()

    async def _read_replica(self, request: ReadReplica) -> ReplicaValues:
        """Return elements of the replica, or of the single model.

        That is made as its first elements are asked for.
        """
        assert self.context is not None
        if request.name != SINGLE_MODEL:
            values = self.context.replica.read(request.start, request.stop)
            return ReplicaValues(values.detach().numpy().tobytes())
        if request.start == 0:
            self._read_model = await self.single_model()
        if self._read_model is None:
            raise ClusterError("the single model cannot be had now")
        return ReplicaValues(self._read_model[request.start : request.stop].cpu().numpy().tobytes())

    async def _write_replica(self, request: WriteReplica) -> Done:
        """Take elements of another loop's replica, or of a checkpoint.

        Those of a checkpoint come before the loop meets the others.
        """
        start, values, numel = request.start, request.values, self._parameters.layout.numel
        if self.context is None:
            if self._first_model is None:
                self._first_model = torch.zeros(numel)
            write_elements(self._first_model, start, values, "replica")
        elif self._start == "cluster" and not self.begun.done():
            elements = elements_of(start, values, numel, "replica")
            self.context.replica.interpolate_(Slice(start, start + len(elements)), elements, 1.0)
        return Done()

    async def _ask_to_pause(self, *, paused: bool) -> None:
        assert self._node is not None
        with contextlib.suppress(ConnectionLost, RemoteError):
            await self._node.coordinator.call(PauseLoop(paused), timeout_seconds=LEAVE_SECONDS)

    async def _ask_for_the_book(self) -> None:
        assert self._node is not None
        while True:
            with contextlib.suppress(ConnectionLost, RemoteError):
                self.book = await self._node.coordinator.call(GetLoops(), timeout_seconds=REQUEST_SECONDS)
            await asyncio.sleep(BOOK_SECONDS)


def continued(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a synchronization that goes on from another one's."""
    counts = {name: value for name, value in before.items() if name not in ("iterations", "gap_open")}
    for name, value in now.items():
        if name in ("gap_max", "synced_iterations"):
            counts[name] = max(value, counts.get(name, 0))
        elif name == "gap_open" or not isinstance(value, int | float):
            counts[name] = value
        else:
            counts[name] = value + counts.get(name, 0)
    return counts
