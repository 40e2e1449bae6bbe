"""The sync role: a node that holds one slice of the center."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import zmq

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError
from ...pipeline.report.merged_work import merged_counts
from ...pipeline.types import Float32Array
from ...pipeline.wire.center_messages import CenterExchange, CenterRead, CenterSeed
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import NodeFacts
from ...pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    Drain,
    DrainReply,
    NodeLost,
    TrainerJoined,
    WriteCheckpoint,
    WriteCheckpointReply,
)
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Listener
from ...sync_algos.base import Algorithm
from ..runtime.largest_messages import largest_of_chunks
from ..runtime.loops import ListeningLoop, LoopThread
from ..runtime.role import NodeContext, ServingRole, admit_trainers, unexpected_request
from .center import CenterState
from .saved_state import CenterMemory, read_center_state, write_center_state
from .slice_merges import SliceMerges, TrainerCounts


class CenterService(ListeningLoop, LoopThread):
    """The service that answers exchanges, reads and seeds, on its own thread.

    Only this thread touches the slice. A complete exchange is applied at once, which takes about 1 ms of CPU
    per MB of the slice; on the node's control loop its heartbeats would wait for that.
    """

    def __init__(
        self, listener: Listener, state: CenterState, failed: Callable[[BaseException], None]
    ) -> None:
        ListeningLoop.__init__(self, listener)
        LoopThread.__init__(self, "center", failed)
        self.state = state
        self._closing: asyncio.TimerHandle | None = None

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far; any thread may call."""
        merges = self.state.merges
        counts = {} if merges is None else {"merges": merges.merges, "late_merges": merges.late_merges}
        return (
            super().metrics()
            | counts
            | {
                "applied_slices": self.state.applied_slices,
                "repeated_chunks": self.state.repeated_chunks,
                "abandoned_exchanges": self.state.abandoned_exchanges,
                "reference_bytes": self.state.reference_bytes,
            }
        )

    def body(self) -> None:
        """See `LoopThread.body`; torch computes on this thread alone."""
        torch.set_num_threads(1)
        super().body()

    async def main(self) -> None:
        """Serve until stopped."""
        await self.serve()

    def handle(self, identity: bytes, message: Message) -> None:
        """Answer a message from the center's state; raises ValueError for an invalid one."""
        if isinstance(message, CenterExchange):
            now = asyncio.get_running_loop().time()
            for reply in self.state.exchange(identity, message, now):
                self.listener.send(identity, reply)
        elif isinstance(message, CenterRead):
            self.listener.send(identity, self.state.read(message))
        elif isinstance(message, CenterSeed):
            self.listener.send(identity, self.state.seed(message, identity))
        else:
            raise ValueError(f"a sync node does not accept a {message.KIND}")

    def served(self) -> None:
        """Close the open merge when it is due, at once or later."""
        if self.state.merges is None:
            return
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        closes_at = self.state.closes_at(now)
        if closes_at <= now:
            for receiver, reply in self.state.close_merge(now):
                self.listener.send(receiver, reply)
        elif closes_at < math.inf:
            self._closing = loop.call_at(closes_at, self.wake)


class SyncRole(ServingRole[CenterService]):
    """The control thread's part of a sync node; its service owns the slice."""

    name: ClassVar[str] = "sync"

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        super().__init__()
        self._job = job
        self._algorithm = algorithm
        self._index = 0
        self._orphaned_slices = 0
        self._is_late = False
        self._trainer_names: dict[str, str] = {}

    async def come_back(self) -> SyncRole:
        """See `Role`: the slice stays, since nobody took its place."""
        return self

    def largest_message(self) -> int:
        return largest_of_chunks(self._job.sync.chunk_bytes)

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """See `ServingRole`; one that comes back listens already."""
        return self._listener.endpoint if self._listener is not None else super().listen(context, address)

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Start the service; trainer 0 sends the slice's size and first value.

        One that comes back has its slice.
        """
        self._index = node.index
        if self._service is not None:
            return NodeFacts()
        merges = SliceMerges(self._algorithm) if self._algorithm.merges else None
        state = CenterState(
            self._algorithm.center_rule,
            self._job.codecs.center(),
            merges,
            deltas=self._algorithm.counts_once,
        )
        self._service = CenterService(self.bound, state, node.fail)
        self._service.start()
        return NodeFacts()

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer ConnectPeers, TrainerJoined, Begin, NodeLost, Drain and WriteCheckpoint."""
        service = self.service
        if isinstance(request, Drain):
            return DrainReply(self.metrics(), {})
        if isinstance(request, WriteCheckpoint):
            return await self._checkpoint(service, request)
        if isinstance(request, NodeLost):
            lost = request
            service.call(lambda: self._forget(service, lost))
            # A merge may have waited for this trainer alone.
            service.call(service.wake)
        elif isinstance(request, TrainerJoined):
            self.bound.admit_also(request.member.token)
            self._trainer_names[request.member.token] = request.member.name
        elif isinstance(request, ConnectPeers):
            self._is_late = request.late
            # Of one that came back, an exchange that counts once goes on: its answer may have been lost.
            if request.late and (self._algorithm.recenters or not service.state.ready):
                await service.run(service.state.await_seeds)
            admit_trainers(self.bound, request)
            self._trainer_names |= {
                member.token: member.name for member in request.members if member.role == "trainer"
            }
        elif isinstance(request, Begin):
            if self._is_late and not await service.run(service.state.seed_mean) and not service.state.ready:
                raise ClusterError("no trainer has sent its slice of the replica")
            if not self._is_late:
                await self._restore(service)
        else:
            raise unexpected_request(self.name, request)
        return Done()

    async def slice_values(self) -> Float32Array | None:
        """Return a copy of the slice; None before its first value."""
        return await self.service.run(self.service.state.copy_values)

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far."""
        return super().metrics() | {"orphaned_slices": self._orphaned_slices} | self._merged_work()

    def _merged_work(self) -> dict[str, float]:
        """Return what each trainer has in this slice; see `pipeline.report.merged_work`."""
        merges = None if self._service is None else self._service.state.merges
        if merges is None:
            return {}
        counts: dict[str, float] = {}
        for token, name in self._trainer_names.items():
            work = merges.trainers.get(token, TrainerCounts())
            counts |= merged_counts(
                name,
                work.examples,
                work.merges,
                missed_merges=work.missed_merges,
                late_seconds=work.late_seconds,
                most_late_seconds=work.most_late_seconds,
            )
        return counts

    def _forget(self, service: CenterService, lost: NodeLost) -> None:
        unknown = service.state.forget(lost.token)
        # A trainer that left had the answer to its last exchange.
        self._orphaned_slices += 0 if lost.left else unknown

    async def _restore(self, service: CenterService) -> None:
        """Give the center the state that a run before had saved of this slice, if there is one."""
        merges, part = service.state.merges, (service.state.start, service.state.stop)
        if merges is None or not service.state.ready:
            return
        names = self._algorithm.center_state_names
        memory = await asyncio.to_thread(read_center_state, self._job, names, *part)
        if memory is not None:
            await service.run(lambda: merges.remember(memory))

    async def _checkpoint(self, service: CenterService, request: WriteCheckpoint) -> WriteCheckpointReply:
        state, merges = service.state, service.state.merges

        def copy() -> tuple[Float32Array | None, CenterMemory | None]:
            values = state.copy_values()
            return values, None if values is None or merges is None else merges.memory(len(values))

        values, memory = await service.run(copy)
        if values is None:
            return WriteCheckpointReply(())
        name = f"sync-{self._index}"
        metadata = {"role": name, "start": str(state.start), "stop": str(state.stop)}

        def write() -> list[FileEntry]:
            target = part_target(request.directory, yields=request.yields)
            files = write_tensors(target, name, {"center": values}, metadata)
            if memory is not None and memory.tensors:
                files += write_center_state(target, self._index, state.start, memory)
            return files

        return WriteCheckpointReply(tuple(await asyncio.to_thread(write)))
