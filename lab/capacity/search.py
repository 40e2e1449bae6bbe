"""The best layout for given machines, and the fewest machines for a given speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from ...pipeline.errors import JobFileError, ResourceError
from ...pipeline.text.format import count, counted, data_size
from .demands import Demands
from .layout import Layout, memory_bytes, memory_of
from .machine import Machine
from .prediction import COORDINATOR, JobRules, Prediction, predict, rate_bound, round_period, thread_limits
from .queueing import lock_cycle_seconds

SLACK: Final = 0.01
"""Of layouts that are this near to the fastest, the one with the fewest nodes is chosen."""
MOST_MACHINES: Final = 10_000
# Counts up to this are all tried, larger ones in steps of a quarter.
_ALL_UP_TO: Final = 16
_STEP: Final = 1.25
# Beyond these multiples of what the cores can feed, more nodes only take memory.
_SPARE: Final = 2.0
# Handing the interpreter's lock over costs more than the formula says, the more often it is taken.
_MOST_LOCKED: Final = 0.5
# A sync node more must shorten the time between rounds by this.
_SHORTER: Final = 0.95


@dataclass(frozen=True)
class PlannedLayout:
    """A layout with its prediction on a number of machines."""

    layout: Layout
    prediction: Prediction
    machines: int


@dataclass(frozen=True)
class Space:
    """Everything that a search is about.

    Attributes:
        demands: what nodes cost.
        rules: what the job says of rounds.
        machine: one of the machines.
    """

    demands: Demands
    rules: JobRules
    machine: Machine

    def predict(self, layout: Layout, machines: int) -> Prediction | None:
        """Predict the speed of a layout; None if it does not fit."""
        return predict(layout, self.demands, self.rules, self.machine, machines)

    def layouts(self, machines: int) -> Iterator[Layout]:
        """Yield the layouts to choose from.

        No more trainers than cores, and of the other nodes as many as could serve all cores. A trainer has no
        more workers than a machine has cores, and than keep its interpreter's lock half free.
        """
        demands, machine = self.demands, self.machine
        cores = machine.cores * machines
        most_rate = _SPARE * cores / demands.cpu_seconds
        for_memory = math.ceil(_SPARE * demands.rows_bytes / machine.memory_bytes)
        shards = min(
            cores, max(for_memory, _needed(most_rate, demands.shard_seconds + demands.writer_seconds))
        )
        readers = min(cores, _needed(most_rate, demands.parser_seconds))
        threads = [1] if demands.embedding_threads == 1 else list(counts(machine.cores))
        for trainers in counts(cores):
            for workers in counts(machine.cores):
                if trainers * workers > 2 * cores or (workers > 1 and self._locked(workers) > _MOST_LOCKED):
                    continue
                sync_nodes = self._sync_nodes(trainers, machines)
                for nodes in counts(max(1, shards)):
                    for of_node in threads:
                        for of_input in counts(max(1, readers)):
                            yield Layout(trainers, workers, nodes, of_node, of_input, sync_nodes)

    def _locked(self, workers: int) -> float:
        """Return how often the lock of so many workers is taken."""
        locked = self.demands.locked_seconds
        free = max(0.0, self.demands.step_seconds - locked)
        return workers * locked / lock_cycle_seconds(free, locked, workers)

    def _sync_nodes(self, trainers: int, machines: int) -> int:
        """Return the fewest sync nodes that hardly lengthen the time between rounds."""
        if not self.rules.has_center:
            return 0
        rate = self.machine.cores * machines / self.demands.cpu_seconds

        def period(nodes: int) -> float:
            layout = Layout(trainers, 1, 1, 1, 1, nodes)
            seconds = round_period(layout, self.demands, self.rules, self.machine, machines, rate)
            return seconds if seconds is not None else 0.0

        nodes = 1
        while nodes < machines and period(nodes + 1) < _SHORTER * period(nodes):
            nodes += 1
        return nodes


def counts(most: int) -> Iterator[int]:
    """Yield 1 to `most`, large numbers in steps of a quarter."""
    number = 1
    while number < most:
        yield number
        number = max(number + 1, math.floor(number * _STEP)) if number >= _ALL_UP_TO else number + 1
    yield most


def best_layout(space: Space, machines: int, target: float | None = None) -> PlannedLayout | None:
    """Find the layout for so many machines; None if none will do.

    Without a target, it is the one with the fewest nodes within SLACK of the highest speed; with one, the
    one with the fewest nodes that reaches it. Layouts are tried in the order of an upper bound of their
    speed, and the search ends where no bound is higher than what was found, so that all others are pruned.
    """
    room = space.machine.memory_bytes * machines
    cores = float(space.machine.cores * machines)
    bounded = [
        (rate_bound(layout, space.demands, space.rules, cores), layout)
        for layout in space.layouts(machines)
        if memory_bytes(layout, space.demands) <= room
    ]
    predicted = cache(lambda layout: space.predict(layout, machines))
    best = 0.0
    for bound, layout in sorted(bounded, key=lambda item: (-item[0], item[1])):
        if bound <= best or (target is not None and (best >= target or bound < target)):
            break
        prediction = predicted(layout)
        if prediction is not None:
            best = max(best, prediction.examples_per_second)
    enough = best * (1.0 - SLACK) if target is None else target
    if best <= 0.0 or best < enough:
        return None
    for layout in sorted(layout for bound, layout in bounded if bound >= enough):
        prediction = predicted(layout)
        if prediction is not None and prediction.examples_per_second >= enough:
            return PlannedLayout(layout, prediction, machines)
    return None


def plan_for_machines(space: Space, machines: int) -> PlannedLayout:
    """Find the fastest layout; raises ResourceError if memory does not suffice."""
    layout = best_layout(space, machines)
    if layout is None:
        raise _does_not_fit(space, machines)
    return layout


def plan_for_target(space: Space, target: float) -> PlannedLayout:
    """Find the fewest machines that reach a speed, in examples per second.

    Above 50 machines, their number is tried in steps of 2%. Raises JobFileError for a speed that no number
    of machines reaches, ResourceError if the job does not fit.
    """
    demands = space.demands
    everything = Layout(1, 1, 1, 1, 1, int(space.rules.has_center))
    most = thread_limits(everything, demands, space.rules)[COORDINATOR]
    if target > most:
        raise JobFileError(
            f"--target: {count(target)} examples/s given; the one coordinator can account for"
            f" {count(most)} in batches of {count(demands.batch)}",
            remedy="raise trainer.batch and profile again, or give a lower target",
        )
    machines = max(1, math.ceil(target * demands.cpu_seconds / space.machine.cores))
    while machines <= MOST_MACHINES:
        layout = best_layout(space, machines, target)
        if layout is not None:
            return layout
        machines = max(machines + 1, math.ceil(machines * 1.02))
    largest = max(memory_of(everything, demands))
    if largest > MOST_MACHINES * space.machine.memory_bytes:
        raise _does_not_fit(space, MOST_MACHINES)
    raise JobFileError(
        f"--target: {count(target)} examples/s given; {counted(MOST_MACHINES, 'machine')} of this kind do not"
        " reach it",
        remedy="give a lower target, or larger machines",
    )


def _does_not_fit(space: Space, machines: int) -> ResourceError:
    smallest = Layout(1, 1, 1, 1, 1, int(space.rules.has_center))
    needed = memory_bytes(smallest, space.demands)
    return ResourceError(
        f"the job needs at least {data_size(needed)} of memory, {data_size(space.demands.rows_bytes)} of it"
        f" for rows, and {counted(machines, 'machine')} with {data_size(space.machine.memory_bytes)} each"
        " cannot hold it",
        where="--machine",
        remedy="give more machines, or machines with more memory",
    )


def _needed(rate: float, seconds: float) -> int:
    return max(1, math.ceil(rate * seconds))
