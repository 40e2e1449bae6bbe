"""The merges of a simulated sync node: `decoupled`'s own window, on simpy's clock."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import simpy

from ...sync_algos.contract.merge_window import MergeWindow
from ...sync_algos.decoupled import Decoupled, DecoupledOptions
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
