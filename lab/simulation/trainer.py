"""Simulated trainers: steady iterations, rounds as events, deaths."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import simpy

from ...nodes.shadow.schedule import RoundSchedule
from .center import Center
from .setting import Setting

Steps = Generator[simpy.Event, Any, None]


class Trainer:
    """Iterations and rounds of one trainer.

    Iterations are not events: between events they grow steadily, by 1 / `step_seconds` in a second.

    Attributes:
        rounds: complete rounds.
        round_seconds: time of complete rounds.
        deaths: number of deaths.
        lost_iterations: iterations that no round had begun to synchronize when the trainer died.
    """

    def __init__(
        self, env: simpy.Environment, setting: Setting, center: Center | None, number: int, start: float
    ) -> None:
        self._env = env
        self._setting = setting
        self._center = center
        self._number = number
        self._start = start
        self._done = 0.0
        self._since: float | None = None
        self._alive = False
        self._synchronized = 0.0
        self._schedule = RoundSchedule(setting.schedule_section())
        self.rounds = 0
        self.round_seconds = 0.0
        self.deaths = 0
        self.lost_iterations = 0.0
        self.process = env.process(self._live())

    @property
    def iterations(self) -> float:
        passed = 0.0 if self._since is None else self._env.now - self._since
        return self._done + passed / self._setting.step_seconds

    def die_at_times(self, draw: random.Random) -> Steps:
        """Kill the trainer again and again."""
        setting = self._setting
        while True:
            yield self._env.timeout(draw.expovariate(setting.deaths_an_hour / 3600.0))
            name = self._name
            self.process.interrupt()
            yield self._env.timeout(setting.detection_seconds)
            if self._center is not None:
                self._center.forget(name)
            yield self._env.timeout(setting.recovery_seconds)

    @property
    def _name(self) -> tuple[int, int]:
        """Return the name of this trainer, which its replacement has not."""
        return self._number, self.deaths

    @property
    def is_alive(self) -> bool:
        """Whether it trains, or waits for a round at a fixed rate."""
        return self._alive

    def _live(self) -> Steps:
        delay = self._start
        while True:
            try:
                yield self._env.timeout(delay)
                self._since, self._alive = self._env.now, True
                yield from self._steps()
            except simpy.Interrupt:
                self._stop()
                self._alive = False
                self.deaths += 1
                self.lost_iterations += self._done - self._synchronized
                self._synchronized = self._done
                self._schedule = RoundSchedule(self._setting.schedule_section())
                delay = self._setting.out_seconds

    def _steps(self) -> Steps:
        if self._setting.site_size:
            # Its site begins the rounds.
            yield self._env.event()
        elif self._setting.mode == "shadow":
            yield from self._shadow()
        else:
            yield from self._fixed()

    def _shadow(self) -> Steps:
        """Begin rounds as `RoundSchedule` says, while iterations go on."""
        env, schedule = self._env, self._schedule
        while True:
            began = env.now
            schedule.began(began, int(self.iterations))
            yield from self._round()
            self._ended(schedule, began)
            missing = schedule.due_iterations - self.iterations
            pause = max(schedule.earliest_seconds - env.now, missing * self._setting.step_seconds)
            if pause > 0.0:
                yield env.timeout(pause)

    def _ended(self, schedule: RoundSchedule, began: float) -> None:
        setting = self._setting
        schedule.ended(
            complete=True,
            seconds=self._env.now - began,
            cpu_seconds=setting.cpu_of_round,
            moved_bytes=int(2 * setting.model_bytes),
        )

    def _fixed(self) -> Steps:
        """Compute `every` iterations, then wait for a round."""
        while True:
            yield self._env.timeout(self._setting.every * self._setting.step_seconds)
            self._stop()
            yield from self._round()
            self._since = self._env.now

    def _round(self) -> Steps:
        began, started = self._env.now, self.iterations
        yield self._env.timeout(self._setting.cpu_of_round)
        assert self._center is not None
        yield self._center.exchange(self._name)
        self.count_round(began, started)

    def count_round(self, began: float, started: float) -> None:
        """Count a complete round that began at a time, with so many iterations."""
        self.rounds += 1
        self.round_seconds += self._env.now - began
        self._synchronized = started

    def _stop(self) -> None:
        self._done, self._since = self.iterations, None
