"""A simulated center: sync nodes with queues, behind links."""

from __future__ import annotations

import random
from collections.abc import Generator, Hashable
from typing import Any

import simpy

from .link import SharedLink
from .merges import Merges
from .setting import Setting

Steps = Generator[simpy.Event, Any, None]


class SyncNode:
    """One sync node: it applies whole slices one after the other, or merges them.

    Attributes:
        merges: None if it answers each slice at once.
    """

    def __init__(self, env: simpy.Environment, setting: Setting) -> None:
        self._env = env
        self._setting = setting
        self.up = SharedLink(env, setting.link_bytes_per_second)
        self.down = SharedLink(env, setting.link_bytes_per_second)
        self.service = simpy.Resource(env)
        self.merges = Merges(env, setting) if setting.merges else None
        self.busy_seconds = 0.0

    def exchange(self, name: Hashable, shares: tuple[float, float]) -> Steps:
        """Take a slice up, apply it, and send the answer down to the trainer of that name.

        A slice goes up whole before its answer comes down.
        """
        setting, env = self._setting, self._env
        if setting.delay_seconds:
            yield env.timeout(setting.delay_seconds)
        yield self.up.transfer(setting.slice_bytes, shares[0])
        # A pair of messages costs at the node what it costs in the trainer.
        seconds = setting.center_seconds_per_byte * setting.model_bytes / setting.sync_nodes
        seconds += setting.message_cpu_seconds
        with self.service.request() as turn:
            yield turn
            yield env.timeout(seconds)
        self.busy_seconds += seconds
        if self.merges is not None:
            yield self.merges.contribute(name)
        yield self.down.transfer(setting.slice_bytes, shares[1])
        if setting.delay_seconds:
            yield env.timeout(setting.delay_seconds)

    def fail_at_times(self, draw: random.Random) -> Steps:
        """Be replaced after each death; meanwhile exchanges wait. Trainers do not."""
        setting = self._setting
        while True:
            yield self._env.timeout(draw.expovariate(setting.sync_deaths_an_hour / 3600.0))
            with self.service.request() as turn:
                yield turn
                yield self._env.timeout(setting.recovery_seconds)


class Center:
    """All simulated sync nodes."""

    def __init__(self, env: simpy.Environment, setting: Setting, draw: random.Random) -> None:
        self._env = env
        self._draw = draw
        self._spread = setting.share_spread
        self.nodes = [SyncNode(env, setting) for _ in range(setting.simulated_nodes)]
        if setting.sync_deaths_an_hour:
            for node in self.nodes:
                env.process(node.fail_at_times(draw))

    def exchange(self, name: Hashable) -> simpy.Event:
        """Exchange all slices at once; the event happens when the last one is back."""
        parts = [
            self._env.process(node.exchange(name, (self._share(), self._share()))) for node in self.nodes
        ]
        return parts[0] if len(parts) == 1 else self._env.all_of(parts)

    def forget(self, name: Hashable) -> None:
        """Wait no longer for a trainer that died."""
        for node in self.nodes:
            if node.merges is not None:
                node.merges.forget(name)

    def _share(self) -> float:
        return self._draw.lognormvariate(0.0, self._spread) if self._spread else 1.0
