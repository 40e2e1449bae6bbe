"""Running rounds in memory, as the algorithms' contract allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from shadowsync.sync_algos.base import Group, Slice
from shadowsync.sync_algos.grouping import Grouping, everyone
from shadowsync.sync_algos.memory import MemoryCenter, MemoryReplica
from shadowsync.sync_algos.registry import make_algorithm

SIZE = 37


def _nothing(part: Slice) -> None:
    del part


@dataclass
class Cluster:
    """One center and two replicas under one algorithm; `meanwhile` runs between a request and its answer."""

    name: str
    options: dict[str, Any]
    parts: int
    meanwhile: Callable[[Slice], None] = field(default=_nothing)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.algorithm = make_algorithm(self.name, self.options)
        self.replicas = [MemoryReplica(torch.randn(SIZE, generator=generator)) for _ in range(2)]
        self.center = SlowCenter(self)
        self.peers = OnlyCenter(self.center)

    def round(self, replica: int = 0) -> bool:
        return asyncio.run(self.algorithm.round(self.replicas[replica], self.peers))


class SlowCenter(MemoryCenter):
    """Something happens to the replica before each answer arrives."""

    def __init__(self, cluster: Cluster) -> None:
        initial = torch.randn(SIZE, generator=torch.Generator().manual_seed(12))
        super().__init__(cluster.algorithm, initial, cluster.parts)
        self._cluster = cluster

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        answer = await super().exchange(part, values)
        self._cluster.meanwhile(part)
        return answer


@dataclass
class OnlyCenter:
    """Peers of a trainer that may only talk to the center."""

    center: MemoryCenter
    index: int = 0

    async def meet(self, grouping: Grouping = everyone) -> Group:
        raise AssertionError(f"a center's algorithm met others by {grouping}")


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    """A cluster by the algorithm's name, its options, and the number of slices."""

    def make(name: str, parts: int = 1, **options: Any) -> Cluster:
        return Cluster(name, options, parts)

    return make
