"""The divergence of the replicas.

`Divergence` computes it chunk by chunk, so that no node holds all replicas; `DivergenceSampler` estimates it
while they train, from a sample of their elements.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...pipeline.wire.control_orders import SampleReplica
from .server import CoordinatorServer

CHUNK_ELEMENTS = 1 << 18


class Divergence:
    """Sums for `‖w_i - mean‖ / ‖mean‖`, averaged over replicas, chunk by chunk.

    They are float64.
    """

    def __init__(self, replicas: int) -> None:
        self._distances = np.zeros(replicas, dtype=np.float64)
        self._mean_square = 0.0

    def add(self, chunks: Sequence[NDArray[np.float32]]) -> None:
        """Add the same elements of every replica, float32 [n] each."""
        stacked = np.stack(chunks).astype(np.float64)
        mean = stacked.mean(axis=0)
        self._distances += np.square(stacked - mean).sum(axis=1)
        self._mean_square += float(np.square(mean).sum())

    def value(self) -> float | None:
        """Return the divergence; None if the mean is zero."""
        if self._mean_square == 0.0:
            return None
        return float(np.mean(np.sqrt(self._distances))) / math.sqrt(self._mean_square)


SAMPLED_ELEMENTS = 1 << 14
REQUEST_SECONDS = 10.0


class DivergenceSampler:
    """Add points to the divergence curve.

    Each is of at most SAMPLED_ELEMENTS evenly spread elements.

    All trainers are requested at once; what they trained while the request was in flight is part of the
    figure.
    """

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state

    async def run(self, dense_elements: int) -> None:
        """Sample until cancelled, while there is more than one trainer."""
        stride = -(-dense_elements // SAMPLED_ELEMENTS)
        while len(self._state.members.alive("trainer")) > 1:
            await asyncio.sleep(self._state.divergence.period_seconds)
            await self._sample(stride)

    async def _sample(self, stride: int) -> None:
        trainers = self._state.members.alive("trainer")
        answers = await self._server.call_all(trainers, SampleReplica(stride), REQUEST_SECONDS)
        if len(answers) < max(2, len(trainers)):
            return
        sums = Divergence(len(answers))
        sums.add([np.frombuffer(answer.values, dtype=np.float32) for answer in answers.values()])
        if (value := sums.value()) is not None:
            self._state.divergence.add(self._state.seconds(), value)
