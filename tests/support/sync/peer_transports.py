"""Links between trainers over ZeroMQ, several in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import zmq
from shadowsync.nodes.allreduce.round import PeerCallbacks
from shadowsync.nodes.allreduce.sockets import PeerListener
from shadowsync.nodes.allreduce.transport import AllReduceTransport
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, Peers, Replica

Context = zmq.Context[zmq.Socket[bytes]]


class Remembering(Algorithm):
    """Has a state of two tensors."""

    name = "remembering"
    summary = "for tests"
    needs_peers = True
    state_names: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, completed: int = 0, numel: int = 0) -> None:
        super().__init__(None)
        tensors = {name: torch.full((numel,), float(completed)) for name in self.state_names}
        self.held = AlgorithmState(completed, tensors)
        self.loads = 0

    async def round(self, replica: Replica, peers: Peers) -> bool:
        raise NotImplementedError

    def state(self) -> AlgorithmState:
        return self.held

    def load_state(self, state: AlgorithmState) -> None:
        self.held = state
        self.loads += 1


@dataclass
class Heard:
    """What one link called back."""

    late: list[tuple[int, int]] = field(default_factory=list)
    excluded: int = 0
    awaited: int = 0


@dataclass
class Bench:
    """Sockets of some trainers, and the links that were made of them."""

    context: Context
    sockets: list[PeerListener]
    members: list[MemberInfo]
    numel: int
    transports: dict[int, AllReduceTransport] = field(default_factory=dict)
    reports: dict[int, Heard] = field(default_factory=dict)

    def open(self, index: int, **options: Any) -> AllReduceTransport:
        """Makes a trainer's link on the running loop."""
        reports = self.reports[index] = Heard()

        def excluded() -> None:
            reports.excluded += 1

        def awaited() -> None:
            reports.awaited += 1

        codecs = options.pop("codecs", LinkCodecs())
        algorithm = options.pop("algorithm", Remembering(0, self.numel))
        # Chunks and timeouts are shorter than a job file may have them.
        sync = SyncSection.model_construct(**{"chunk_bytes": 4 * 100, "timeout_seconds": 10.0} | options)
        transport = AllReduceTransport(
            self.sockets[index],
            self.context,
            self.members,
            index,
            self.members[index].token,
            numel=self.numel,
            seed=3,
            sync=sync,
            codecs=codecs,
            algorithm=algorithm,
            callbacks=PeerCallbacks(
                lambda generation, late: reports.late.append((generation, late)), excluded, awaited
            ),
        )
        self.transports[index] = transport
        return transport

    def regroup(self, generation: int, members: Sequence[int]) -> None:
        """The coordinator's word, to all."""
        for transport in self.transports.values():
            transport.regroup(generation, members)


@asynccontextmanager
async def bench(
    context: Context, count: int, numel: int, address: str = "inproc://peer-{}", **options: Any
) -> AsyncIterator[Bench]:
    """Links of `count` trainers in generation 1; they are closed with it."""
    made = sockets_of(context, count, numel, address)
    try:
        for index in range(count):
            made.open(index, **options)
        made.regroup(1, range(count))
        yield made
    finally:
        for transport in made.transports.values():
            transport.close()


def sockets_of(context: Context, count: int, numel: int, address: str) -> Bench:
    """Bound sockets, without links."""
    sockets = [PeerListener(context, address.format(index)) for index in range(count)]
    members = [
        MemberInfo(f"trainer-{index}", "trainer", index, f"token-{index}", socket.endpoint)
        for index, socket in enumerate(sockets)
    ]
    return Bench(context, sockets, members, numel)


def vector(numel: int, seed: int) -> torch.Tensor:
    """Some values."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=numel).astype(np.float32))


async def mean_of(transport: AllReduceTransport, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """What an algorithm does."""
    group = await transport.meet()
    return await group.mean(values, weight)


async def means(
    transports: Sequence[AllReduceTransport], values: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """A round of all."""
    return list(await asyncio.gather(*(mean_of(*pair) for pair in zip(transports, values, strict=True))))
