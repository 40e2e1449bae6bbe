"""How far the replicas are apart while they train, from a sample of their elements."""

from __future__ import annotations

import asyncio

import numpy as np

from .coordinator import Coordinator
from .divergence import Divergence

SAMPLED_ELEMENTS = 1 << 14
FIRST_PERIOD_SECONDS = 1.0
MAX_POINTS = 512
ASK_SECONDS = 10.0


class DivergenceCurve:
    """Points (seconds, divergence) of at most SAMPLED_ELEMENTS elements, evenly spread over the model.

    All trainers are asked at once; what they trained while the question was on its way is part of the
    figure. The period doubles whenever there are MAX_POINTS.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    async def run(self, coordinator: Coordinator, dense_elements: int) -> None:
        """Samples until cancelled, while more than one trainer is there."""
        period = FIRST_PERIOD_SECONDS
        stride = -(-dense_elements // SAMPLED_ELEMENTS)
        while len(coordinator.members.alive("trainer")) > 1:
            await asyncio.sleep(period)
            await self._sample(coordinator, stride)
            coordinator.divergence_points = self.points
            coordinator.divergence_period_seconds = period
            if len(self.points) >= MAX_POINTS:
                self.points, period = self.points[::2], period * 2

    async def _sample(self, coordinator: Coordinator, stride: int) -> None:
        trainers = coordinator.members.alive("trainer")
        answers = await coordinator.ask_all(trainers, "replica_sample", {"stride": stride}, ASK_SECONDS)
        if len(answers) < max(2, len(trainers)):
            return
        sums = Divergence(len(answers))
        sums.add([np.frombuffer(answer["values"], dtype=np.float32) for answer in answers.values()])
        if (value := sums.value()) is not None:
            self.points.append((coordinator.seconds(), value))
