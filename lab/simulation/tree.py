"""A simulated two-level tree: sites average often, all trainers seldom, without sync nodes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from ...nodes.shadow.schedule import RoundSchedule
from .setting import FRAME_PAYLOAD, Setting
from .trainer import Trainer

Steps = Generator[simpy.Event, Any, None]


class Meeting:
    """A barrier of all sites, which opens with the last one."""

    def __init__(self, env: simpy.Environment, sites: int) -> None:
        self._env = env
        self._sites = sites
        self._here = 0
        self._all_here = env.event()

    def arrive(self) -> simpy.Event:
        """Return the event of the last arrival."""
        self._here += 1
        event = self._all_here
        if self._here == self._sites:
            event.succeed()
            self._here, self._all_here = 0, self._env.event()
        return event


class Site:
    """The rounds of one site, and its part in the rounds of all.

    An all-reduce of n trainers takes each of them 2 (n - 1) messages both ways, and moves 2 (n - 1) / n of
    the model over its link in each direction, as `nodes.allreduce` does.

    Attributes:
        moved_bytes: bytes sent by all trainers of the site.
    """

    def __init__(
        self, env: simpy.Environment, setting: Setting, trainers: Sequence[Trainer], meeting: Meeting
    ) -> None:
        self._env = env
        self._setting = setting
        self._trainers = trainers
        self._meeting = meeting
        self.moved_bytes = 0.0
        env.process(self._rounds())

    def _rounds(self) -> Steps:
        env, setting = self._env, self._setting
        schedule = RoundSchedule(setting.schedule_section())
        yield env.timeout(setting.start_seconds)
        number = 0
        while True:
            number += 1
            of_all = number % setting.site_every == 0
            began = env.now
            if of_all:
                yield self._meeting.arrive()
            started = {trainer: trainer.iterations for trainer in self._trainers if trainer.is_alive}
            schedule.began(began, int(max(started.values(), default=0.0)))
            size = setting.trainers if of_all else len(self._trainers)
            cpu = self._cpu_seconds(size)
            yield env.timeout(cpu + self._link_seconds(size, of_all=of_all))
            for trainer, iterations in started.items():
                if trainer.is_alive:
                    trainer.count_round(began, iterations)
            self.moved_bytes += len(started) * self._bytes(size)
            schedule.ended(
                complete=True,
                seconds=env.now - began,
                cpu_seconds=cpu,
                moved_bytes=int(2 * self._bytes(size)),
            )
            pause = schedule.earliest_seconds - env.now
            if setting.gap is not None:
                most = max((trainer.iterations for trainer in self._trainers), default=0.0)
                pause = max(pause, (schedule.due_iterations - most) * setting.step_seconds)
            if pause > 0.0:
                yield env.timeout(pause)

    def _cpu_seconds(self, size: int) -> float:
        setting = self._setting
        return setting.round_cpu_seconds + setting.message_cpu_seconds * max(0, 2 * (size - 1) - 1)

    def _bytes(self, size: int) -> float:
        return 2 * (size - 1) / size * self._setting.model_bytes / FRAME_PAYLOAD

    def _link_seconds(self, size: int, *, of_all: bool) -> float:
        setting = self._setting
        seconds = self._bytes(size) / setting.link_bytes_per_second + 2 * setting.delay_seconds
        if of_all and setting.site_bytes_per_second is not None:
            trainers = len(self._trainers)
            # What its trainers exchange with those of other sites.
            leaving = trainers * self._bytes(size) * (size - trainers) / max(1, size - 1)
            seconds = max(seconds, leaving / setting.site_bytes_per_second)
        return seconds
