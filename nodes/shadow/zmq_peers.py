"""Connections of one loop to the sync nodes and other trainers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import zmq

from ...pipeline.wire.control.orders import GroupView, MemberInfo
from ...sync_algos.base import Algorithm, Group
from ...sync_algos.contract.grouping import Grouping, everyone
from ..allreduce.round import PeerCallbacks
from ..allreduce.sockets import PeerListener
from ..allreduce.transport import AllReduceTransport
from ..replica.replica import ReplicaContext
from ..runtime.members import summed
from .center_client import CenterClient


class ZmqPeers:
    """A trainer's peers over ZeroMQ.

    Implements `Peers` of `sync_algos`; belongs to one loop.
    """

    def __init__(self, index: int, center: CenterClient | None, transport: AllReduceTransport | None) -> None:
        self._index = index
        self._center = center
        self.transport = transport

    @property
    def center(self) -> CenterClient:
        """The center; raises TypeError if the algorithm does not declare that it needs one."""
        if self._center is None:
            raise TypeError("this algorithm has no center: declare needs_center = True")
        return self._center

    @property
    def index(self) -> int:
        """This trainer's index among all trainers."""
        return self._index

    async def meet(self, grouping: Grouping = everyone) -> Group:
        """See `Peers.meet`.

        Raises TypeError if the algorithm does not declare that it needs peers.
        """
        if self.transport is None:
            raise TypeError("this algorithm has no peers: declare needs_peers = True")
        return await self.transport.meet(grouping)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent over all connections; any thread may read it."""
        return sum(link.sent_bytes for link in (self._center, self.transport) if link is not None)

    @property
    def received_bytes(self) -> int:
        """Bytes received over all connections; any thread may read it."""
        return sum(link.received_bytes for link in (self._center, self.transport) if link is not None)

    def metrics(self) -> dict[str, float]:
        """Return the counts of all connections; see `CenterClient.metrics`. Any thread may call."""
        return summed(link.metrics() for link in (self._center, self.transport) if link is not None)

    def set_exact(self, *, is_exact: bool) -> None:
        """See `CenterClient.set_exact`."""
        if self._center is not None:
            self._center.set_exact(is_exact=is_exact)

    def mark_lost(self, token: str) -> None:
        if self._center is not None:
            self._center.mark_lost(token)

    def drop_trainer(self, token: str, *, left: bool) -> None:
        """Close the connection to another trainer, which died or `left`."""
        if self.transport is not None:
            self.transport.drop(token, left=left)

    def close(self) -> None:
        for link in (self._center, self.transport):
            if link is not None:
                link.close()


@dataclass(frozen=True)
class ConnectionConfig:
    """The configuration with which a thread opens its own connections."""

    zmq_context: zmq.Context[zmq.Socket[bytes]]
    algorithm: Algorithm
    syncs: Sequence[MemberInfo]
    trainers: Sequence[MemberInfo]
    index: int
    token: str

    def open_center(self, context: ReplicaContext, thread: str) -> CenterClient | None:
        """Open a client of the sync nodes on this thread's loop, if needed."""
        if not self.algorithm.needs_center:
            return None
        sync = context.job.sync
        return CenterClient(
            self.zmq_context,
            self.syncs,
            context.replica.numel,
            f"{self.token}/{thread}",
            chunk_bytes=sync.chunk_bytes,
            timeout_seconds=sync.timeout_seconds,
            codecs=context.job.codecs.center(),
            counts_once=not self.algorithm.recenters,
            deltas=self.algorithm.counts_once,
        )

    def open(
        self,
        context: ReplicaContext,
        thread: str,
        socket: PeerListener | None,
        view: GroupView,
        callbacks: PeerCallbacks,
    ) -> ZmqPeers:
        """Open the algorithm's connections on the calling thread's running loop.

        The thread takes over `socket`, which is closed if this raises; only one thread of a trainer may have
        the peers.
        """
        with ExitStack() as opened:
            if socket is not None:
                opened.callback(socket.close)
            center = self.open_center(context, thread)
            if center is not None:
                opened.callback(center.close)
            transport = self._open_transport(context, socket, callbacks) if socket is not None else None
            opened.pop_all()
        if transport is not None:
            transport.regroup(view.generation, view.members)
        return ZmqPeers(self.index, center, transport)

    def _open_transport(
        self, context: ReplicaContext, socket: PeerListener, callbacks: PeerCallbacks
    ) -> AllReduceTransport:
        job = context.job
        return AllReduceTransport(
            socket,
            self.zmq_context,
            self.trainers,
            self.index,
            self.token,
            numel=context.replica.numel,
            seed=job.run.seed,
            sync=job.sync,
            codecs=job.codecs.peers(),
            algorithm=self.algorithm,
            callbacks=callbacks,
        )
