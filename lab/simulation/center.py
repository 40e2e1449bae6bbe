"""A simulated center: sync nodes with queues, behind links."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Hashable
from typing import Any, Final

import simpy

from ...sync_algos.contract.merge_window import MergeWindow
from ...sync_algos.decoupled import Decoupled, DecoupledOptions
from .link import SharedLink
from .setting import Setting

SHORTEST_WAIT_SECONDS: Final = 1e-6


class Merges:
    """The open merge of one sync node.

    Attributes:
        merges: closed merges.
        contributions: contributions in them.
    """

    def __init__(self, env: simpy.Environment, setting: Setting) -> None:
        self._env = env
        options = DecoupledOptions(
            quorum=setting.quorum or "half",
            grace=setting.grace,
            longest_wait_seconds=setting.longest_wait_seconds,
        )
        self._window = MergeWindow(Decoupled(options).merge_terms)
        self._waiting = 0
        self._asks_at = math.inf
        self._closed = env.event()
        self.merges = 0
        self.contributions = 0

    def contribute(self, name: Hashable) -> simpy.Event:
        """Add a trainer's contribution; the event happens when the merge closes."""
        event = self._closed
        self._window.contributed(name, 1, self._env.now)
        self._waiting += 1
        self._ask()
        return event

    def forget(self, name: Hashable) -> None:
        """Wait no longer for a trainer that died."""
        self._window.forget(name)
        self._ask()

    def _ask(self) -> None:
        now = self._env.now
        if (moment := self._window.closes_at(now)) <= now:
            self._close(now)
        elif moment < self._asks_at:
            # Never less than the clock can tell: it would stand still.
            self._asks_at = max(moment, now + SHORTEST_WAIT_SECONDS)
            asked = self._asks_at
            self._env.timeout(asked - now).callbacks.append(lambda _: self._ask_again(asked))

    def _ask_again(self, asked: float) -> None:
        if asked == self._asks_at:
            self._asks_at = math.inf
            self._ask()

    def _close(self, now: float) -> None:
        self._window.close(now)
        self.merges += 1
        self.contributions += self._waiting
        self._waiting = 0
        self._closed.succeed()
        self._closed = self._env.event()


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
