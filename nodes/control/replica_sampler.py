"""Samples of the replicas during training, for the curve of their divergence."""

from __future__ import annotations

import asyncio

import numpy as np

from ...pipeline.types import Float32Array, is_finite
from ...pipeline.wire.control.orders import FLOAT_BYTES, SampleReplica
from .divergence import SAMPLED_ELEMENTS, divergence_of
from .server import ControlServer

REQUEST_SECONDS = 10.0
# Time between checks for a second trainer.
IDLE_SECONDS = 1.0


class ReplicaSampler:
    """Sample the replicas for the divergence curve.

    All trainers are asked at once; what they train while the request is in flight is part of the figure.
    Runs on the server's loop.
    """

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._state = server.state

    async def run(self, dense_elements: int) -> None:
        """Sample until cancelled, whenever there is more than one trainer."""
        curve = self._state.divergence
        due_seconds = self._state.seconds() + curve.period_seconds
        while True:
            await asyncio.sleep(max(0.0, due_seconds - self._state.seconds()))
            if len(self._state.members.alive("trainer")) < 2:
                # Another trainer may join.
                due_seconds = self._state.seconds() + IDLE_SECONDS
                continue
            replicas = await self.sample(dense_elements)
            now = self._state.seconds()
            due_seconds = now + curve.period_seconds
            value = divergence_of(replicas)
            if value is not None:
                curve.add(now, value)

    async def sample(self, elements: int) -> list[Float32Array]:
        """Return a sample of each replica, float32, of so many elements.

        There are none unless all replied with finite values.
        """
        stride = -(-elements // SAMPLED_ELEMENTS)
        trainers = self._state.members.alive("trainer")
        replies = await self._server.call_all(trainers, SampleReplica(stride), REQUEST_SECONDS)
        expected_bytes = FLOAT_BYTES * len(range(0, elements, stride))
        for trainer in trainers:
            reply = replies.get(trainer.info.name)
            if reply is not None and len(reply.values) != expected_bytes:
                del replies[trainer.info.name]
                self._server.expel(
                    trainer, f"a sample of {len(reply.values)} bytes instead of {expected_bytes}"
                )
        if len(replies) < max(2, len(trainers)):
            return []
        samples = [np.frombuffer(reply.values, dtype=np.float32) for reply in replies.values()]
        # A model that has diverged is told by its losses.
        return samples if all(map(is_finite, samples)) else []
