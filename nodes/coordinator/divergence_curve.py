"""How far the replicas are apart while they train, from a sample of their elements."""

from __future__ import annotations

import asyncio

import numpy as np

from .divergence import Divergence
from .server import CoordinatorServer

SAMPLED_ELEMENTS = 1 << 14
ASK_SECONDS = 10.0


class DivergenceSampler:
    """Adds points to the state's divergence curve: of at most SAMPLED_ELEMENTS elements, evenly spread.

    All trainers are asked at once; what they trained while the question was on its way is part of the
    figure.
    """

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state

    async def run(self, dense_elements: int) -> None:
        """Samples until cancelled, while more than one trainer is there."""
        stride = -(-dense_elements // SAMPLED_ELEMENTS)
        while len(self._state.members.alive("trainer")) > 1:
            await asyncio.sleep(self._state.divergence.period_seconds)
            await self._sample(stride)

    async def _sample(self, stride: int) -> None:
        trainers = self._state.members.alive("trainer")
        answers = await self._server.call_all(trainers, "replica_sample", {"stride": stride}, ASK_SECONDS)
        if len(answers) < max(2, len(trainers)):
            return
        sums = Divergence(len(answers))
        sums.add([np.frombuffer(answer["values"], dtype=np.float32) for answer in answers.values()])
        if (value := sums.value()) is not None:
            self._state.divergence.add(self._state.seconds(), value)
