"""The speeds of the emulated machines, and how far apart they are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from ...pipeline.types import FrozenModel

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# No emulated step or round takes more than an hour.
Work = Annotated[float, Field(gt=0, le=3600)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Timing(FrozenModel):
    """Times of the emulated machines, and who feeds them.

    Bandwidth and delay of links are set in the job's `[network]`.

    Attributes:
        step_seconds: a worker's step: forward, backward, update.
        step_spread: standard deviation of the logarithm of a step's time; 0: all steps take the same time.
        slower: factor on the time of a step, by trainer; 1 for trainers beyond its end.
        lookup_seconds: one way between a worker and an embedding node, for a lookup or its reply.
        push_seconds: one way, for gradients or the reply to them.
        round_cpu_seconds: CPU time of a round in the trainer, which the duty cycle counts.
        round_seconds: time of a round in the trainer besides the link's: half before its values are sent,
            half before the reply is applied.
        first_round_cpu_seconds: instead of `round_cpu_seconds`, for the first round of each trainer.
        center_seconds: time of a sync node for one exchange; exchanges wait for each other.
        stop_seconds: trainer 0 stands still for so long at the end of every `stop_every_seconds`; below that.
        start_seconds: the first trainer starts at 0, the last one this much later, the others in between.
        own_files: each of n trainers is fed by a reader of its own, with every n-th file, instead of by all
            readers.
    """

    ignored_fields = frozenset({"part_seconds"})

    step_seconds: Work = 0.02
    step_spread: Annotated[float, Field(ge=0, le=2)] = 0.1
    slower: tuple[Factor, ...] = ()
    lookup_seconds: Seconds = 0.001
    push_seconds: Seconds = 0.001
    round_cpu_seconds: Work = 0.002
    round_seconds: Seconds = 0.004
    first_round_cpu_seconds: Factor | None = None
    center_seconds: Seconds = 0.001
    stop_seconds: Seconds = 0.0
    stop_every_seconds: Work = 15.0
    start_seconds: Seconds = 0.0
    own_files: bool = False

    @model_validator(mode="after")
    def _runs_between_stops(self) -> Self:
        if self.stop_seconds >= self.stop_every_seconds:
            raise ValueError(
                f"stop_seconds: {self.stop_seconds:g} given; give less than stop_every_seconds,"
                f" {self.stop_every_seconds:g}"
            )
        return self

    def lasts(self, trainer: int, began: float, seconds: float) -> float:
        """Return how long a trainer takes, from `began` on, for what is work of so many seconds."""
        if trainer or not self.stop_seconds:
            return seconds
        runs = self.stop_every_seconds - self.stop_seconds
        periods, into = divmod(began, self.stop_every_seconds)
        further, rest = divmod(min(into, runs) + seconds, runs)
        if seconds and not rest:
            # Done just before a stop.
            further, rest = further - 1, runs
        return max(seconds, (periods + further) * self.stop_every_seconds + rest - began)

    def cpu_of_round(self, number: int) -> float:
        """Return the CPU seconds of a trainer's round `number`, from 0."""
        if number == 0 and self.first_round_cpu_seconds is not None:
            return self.first_round_cpu_seconds
        return self.round_cpu_seconds

    def start_of(self, trainer: int, trainers: int) -> float:
        """Return the second at which a trainer starts."""
        return self.start_seconds * trainer / max(1, trainers - 1)

    def steps(self, trainer: int, worker: int, seed: int) -> StepTimes:
        """Return the times of one worker's steps, drawn from the job's seed."""
        mean = self.step_seconds * self._slower(trainer)
        return StepTimes(mean, self.step_spread, (seed, trainer, worker))

    def _slower(self, trainer: int) -> float:
        return self.slower[trainer] if trainer < len(self.slower) else 1.0


class StepTimes:
    """Source of the times of one worker's steps: log-normal, with the given mean."""

    def __init__(self, mean_seconds: float, spread: float, seeds: Sequence[int]) -> None:
        self._spread = spread
        self._location = math.log(mean_seconds) - spread**2 / 2
        self._random = random.Random(":".join(map(str, seeds)))

    def next(self) -> float:
        """Return the seconds of the next step."""
        if not self._spread:
            return math.exp(self._location)
        return self._random.lognormvariate(self._location, self._spread)
