"""A cluster in memory whose workers step at random, beside the same replicas in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Phase
from shadowsync.sync_algos.shared.pull import PullOptions

Array = NDArray[np.float64]
SIZE, ROUNDS, SEED = 11, 5, 3


class Run:
    """A cluster, and beside it the same replicas in float64. Workers step before each round and in it."""

    def __init__(self, make: Callable[[], Any], trainers: int) -> None:
        generator = torch.Generator().manual_seed(21)
        self.cluster = MemoryCluster(make, torch.randn(SIZE, generator=generator), trainers, seed=SEED)
        self.cluster.on_phase = self._meanwhile
        self.random = np.random.default_rng(22)
        self.exact = [replica.values.numpy().astype(np.float64) for replica in self.cluster.replicas]
        self.snapshots = [one.copy() for one in self.exact]
        self.trained = [0] * trainers
        self.stepping = True

    def rounds(self) -> Iterator[int]:
        """Each round, run; the exact replicas have all steps, and no synchronization yet."""
        for number in range(ROUNDS):
            self.trained = [0] * len(self.exact)
            for index in range(len(self.exact)):
                for _ in range((index + number) % 3):
                    self._step(index)
            assert self.cluster.round() == dict.fromkeys(range(len(self.exact)), True)
            yield number

    def check(self) -> None:
        """Equal up to the rounding of float32."""
        for replica, exact in zip(self.cluster.replicas, self.exact, strict=True):
            close(replica.values, exact)

    def pull(self, index: int, target: Array, options: PullOptions) -> None:
        """The two forms, written out."""
        w, rate = self.exact[index], options.elastic_rate
        if options.form == "interpolate":
            self.exact[index] = (1 - rate) * w + rate * target
        else:
            self.exact[index] = w + rate * (target - self.snapshots[index])

    def _meanwhile(self, index: int, phase: Phase) -> None:
        if phase in (Phase.MET, Phase.GIVING) and self.stepping:
            self._step(index)
        if phase is Phase.MET:
            # What was trained while it waited for the others is in the snapshot.
            self.snapshots[index] = self.exact[index].copy()

    def _step(self, index: int) -> None:
        step = self.random.normal(size=SIZE).astype(np.float32)
        self.cluster.replicas[index].values.add_(torch.from_numpy(step))
        self.exact[index] = self.exact[index] + step
        self.cluster.replicas[index].trained_examples += 8
        self.trained[index] += 8


def close(found: torch.Tensor, exact: Array, atol: float = 3e-6) -> None:
    np.testing.assert_allclose(found.numpy().astype(np.float64), exact, rtol=1e-5, atol=atol)
