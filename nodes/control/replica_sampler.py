"""Samples of the replicas during training, and settings derived from them."""

from __future__ import annotations

import asyncio

import numpy as np

from ...pipeline.types import is_finite
from ...pipeline.wire.control.orders import FLOAT_BYTES, SampleReplica, SetSync
from .divergence import SAMPLED_ELEMENTS, divergence_of
from .server import ControlServer
from .sync_controller import ReplicaPoint
from .sync_law import SyncSettings

REQUEST_SECONDS = 10.0
# Time between checks for a second trainer.
IDLE_SECONDS = 1.0


class ReplicaSampler:
    """Sample the replicas for the divergence curve and the controller.

    All trainers are asked at once; what they train while the request is in flight is part of the figure.
    Runs on the server's loop.
    """

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._state = server.state
        # Confirmed settings by token: a loop that comes back has another one, and the first settings again.
        # None while an order is unconfirmed, which is then repeated.
        self._confirmed: dict[str, SyncSettings | None] = {}
        self._first = self._state.control.settings if self._state.control is not None else None

    async def run(self, dense_elements: int) -> None:
        """Sample until cancelled, whenever there is more than one trainer."""
        control, curve = self._state.control, self._state.divergence
        point_due = self._state.seconds() + curve.period_seconds
        while True:
            pause = point_due - self._state.seconds()
            await asyncio.sleep(max(0.0, pause if control is None else min(pause, control.pause_seconds)))
            if len(self._state.members.alive("trainer")) < 2:
                # Another trainer may join.
                point_due = max(point_due, self._state.seconds() + IDLE_SECONDS)
                continue
            replicas = await self.sample(dense_elements)
            now = self._state.seconds()
            if now >= point_due:
                point_due = now + curve.period_seconds
                value = divergence_of([replica.values for replica in replicas.values()])
                if value is not None:
                    curve.add(now, value)
            if control is not None and replicas:
                control.add(now, replicas)
                await self._order(control.settings)

    async def sample(self, elements: int) -> dict[str, ReplicaPoint]:
        """Return samples of the replicas, of so many elements each, by trainer.

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
            return {}
        points = {
            name: ReplicaPoint(
                np.frombuffer(sample.values, dtype=np.float32), sample.iterations, sample.rounds
            )
            for name, sample in replies.items()
        }
        # A model that has diverged is told by its losses.
        return points if all(is_finite(point.values) for point in points.values()) else {}

    async def _order(self, settings: SyncSettings) -> None:
        """Send the settings to nodes that have not confirmed them."""
        members = [*self._state.members.alive("trainer"), *self._state.members.alive("sync")]
        late = [
            member for member in members if self._confirmed.get(member.info.token, self._first) != settings
        ]
        self._confirmed.update((member.info.token, None) for member in late)
        order = SetSync(settings.gap, settings.elastic_rate or 0.0)
        replies = await self._server.call_all(late, order, REQUEST_SECONDS)
        self._confirmed.update(
            (member.info.token, settings) for member in late if member.info.name in replies
        )
