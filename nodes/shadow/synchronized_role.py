"""The common part of roles with a synchronized replica: trainers, and attached loops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.orders import (
    NodeLost,
    ReplicaSample,
    SampleReplica,
    SetGroup,
    TrainerJoined,
)
from ..replica.replica import ReplicaContext
from ..runtime.role import Role
from .synchronizer import Synchronizer

Handlers: TypeAlias = Mapping[type[Request[Any]], Callable[[Any], Awaitable[Reply]]]


class SynchronizedRole(Role):
    """The control side of a node with a replica, whose shadow thread synchronizes it."""

    def __init__(self) -> None:
        self._sync: Synchronizer | None = None
        self._lost_peers: list[NodeLost] = []

    @property
    @abstractmethod
    def replica_context(self) -> ReplicaContext:
        """The replica, once the node has met the others."""

    @property
    def replica_handlers(self) -> Handlers:
        """Return the handlers of the orders about replica and synchronization."""
        return {
            TrainerJoined: self._trainer_joined,
            SetGroup: self._set_group,
            SampleReplica: self._sample_replica,
        }

    def start_sync(self, sync: Synchronizer) -> None:
        """Start the synchronizer; nodes may have died before it was there."""
        self._sync = sync
        sync.shadow.start()
        for lost in self._lost_peers:
            self.lose_peer(lost)

    def lose_peer(self, lost: NodeLost) -> None:
        """Expect nothing more of a sync node or trainer; other roles change nothing."""
        if self._sync is None:
            self._lost_peers.append(lost)
        elif lost.role == "sync":
            self._sync.mark_lost(lost.token)
        elif lost.role == "trainer":
            self._sync.shadow.drop_trainer(lost.token, left=lost.left)

    async def _trainer_joined(self, request: TrainerJoined) -> Done:
        if self._sync is not None:
            await self._sync.shadow.connect(request.member)
        return Done()

    async def _set_group(self, request: SetGroup) -> Done:
        if self._sync is not None:
            await self._sync.shadow.regroup(request.group)
        return Done()

    async def _sample_replica(self, request: SampleReplica) -> ReplicaSample:
        """Return every `stride`-th element of the current replica."""
        return ReplicaSample(self.replica_context.replica.read(stride=request.stride).numpy().tobytes())
