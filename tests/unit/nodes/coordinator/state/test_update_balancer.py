"""Balancing the dense updates of trainers whose machines are simulated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from shadowsync.nodes.coordinator.state.update_balancer import UpdateBalancer, UpdateCounts
from shadowsync.pipeline.wire.control.orders import MAX_MICRO_BATCHES

BEAT_SECONDS = 0.5


@dataclass
class Machine:
    """A trainer whose batch takes `example_seconds`, and `part_seconds` more for each part."""

    example_seconds: float
    part_seconds: float = 0.0
    noise: float = 0.0
    order_beats: int = 0
    micro_batches: float = 1.0
    batches: float = 0.0
    updates: float = 0.0

    def __post_init__(self) -> None:
        self._orders: list[tuple[int, float]] = []

    def run(self, random_numbers: random.Random, speed: float) -> None:
        """Train until the next heartbeat; the noise is in the time of the whole interval."""
        self._orders = [(beats - 1, micro_batches) for beats, micro_batches in self._orders]
        while self._orders and self._orders[0][0] < 0:
            self.micro_batches = self._orders.pop(0)[1]
        batch_seconds = self.example_seconds + self.part_seconds * self.micro_batches
        done = BEAT_SECONDS * speed / batch_seconds * random_numbers.lognormvariate(0.0, self.noise)
        self.batches += done
        self.updates += done * self.micro_batches

    def order(self, micro_batches: float) -> None:
        """Take an order, in effect so many heartbeats later."""
        self._orders.append((self.order_beats, micro_batches))


class Cluster:
    """Trainers under a balancer; `orders` counts what it told them, which they heed if `balanced`. What all
    of them have in common makes their speed differ from interval to interval by `common_noise`."""

    def __init__(
        self, machines: Sequence[Machine], *, balanced: bool = True, common_noise: float = 0.0
    ) -> None:
        self.machines = machines
        self.orders = 0
        self._balanced = balanced
        self._common_noise = common_noise
        self._balancer = UpdateBalancer()
        self._random = random.Random(1)
        self._beats = 0

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_SECONDS)):
            self._beats += 1
            speed = self._random.lognormvariate(0.0, self._common_noise)
            for index, machine in enumerate(self.machines):
                machine.run(self._random, speed)
                now = (self._beats + 0.05 * index) * BEAT_SECONDS
                counts = UpdateCounts(now, int(machine.batches), int(machine.updates), machine.micro_batches)
                micro_batches = self._balancer.record_heartbeat(f"trainer-{index}", counts)
                if micro_batches is not None:
                    assert 1.0 <= micro_batches <= MAX_MICRO_BATCHES
                    self.orders += 1
                if micro_batches is not None and self._balanced:
                    machine.order(micro_batches)


def simulate(machines: Sequence[Machine], seconds: float, *, balanced: bool = True) -> int:
    """Run the machines under a balancer; return the number of orders."""
    cluster = Cluster(machines, balanced=balanced)
    cluster.run(seconds)
    return cluster.orders


def share(machine: Machine, fastest: Machine) -> float:
    return machine.updates / fastest.updates


@pytest.mark.parametrize("slower", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("order_beats", [0, 2])
def test_a_slow_trainer_makes_as_many_updates(slower: float, noise: float, order_beats: int) -> None:
    def machines() -> list[Machine]:
        return [Machine(0.018 * factor, 0.0005 * factor, noise, order_beats) for factor in (slower, 1.0, 1.0)]

    slow, *fast = balanced = machines()
    simulate(balanced, 60.0)
    assert [share(slow, one) for one in fast] == [pytest.approx(1.0, abs=0.1)] * 2
    assert [one.micro_batches for one in fast] == [1.0, 1.0]
    left = machines()
    simulate(left, 60.0, balanced=False)
    assert share(left[0], left[1]) == pytest.approx(1 / slower, rel=0.1), "the control"


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_parts_do_not_swing(noise: float) -> None:
    slow, fast = machines = [Machine(0.06, 0.002, noise), Machine(0.02, 0.0, noise)]
    cluster = Cluster(machines)
    cluster.run(60.0)
    exact, seen, cluster.orders = 0.06 / (0.02 - 0.002), [], 0
    for _ in range(600):
        cluster.run(1.0)
        seen.append(slow.micro_batches)
        assert fast.micro_batches == 1.0
    assert min(seen) > exact * (0.94 - 2 * noise)
    assert max(seen) < exact * (1.06 + 2 * noise)
    assert cluster.orders <= (30 if not noise else 100)


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_equal_trainers_are_never_cut(count: int, noise: float) -> None:
    machines = [Machine(0.02, noise=noise) for _ in range(count)]
    assert simulate(machines, 120.0) == 0
    assert {machine.micro_batches for machine in machines} == {1.0}
    assert simulate([*machines, Machine(0.03)], 120.0) > 0, "the control"


def test_what_slows_all_trainers_down_at_once_changes_nothing() -> None:
    """Here by three times or more in one of four intervals, as other programs on their machine would."""
    equal = [Machine(0.005) for _ in range(4)]
    cluster = Cluster(equal, common_noise=1.0)
    cluster.run(300.0)
    assert cluster.orders == 0
    slow, fast = machines = [Machine(0.015), Machine(0.005)]
    cluster = Cluster(machines, common_noise=1.0)
    cluster.run(60.0)
    assert slow.micro_batches == pytest.approx(3.0, rel=0.25)
    assert fast.micro_batches == 1.0
    assert share(slow, fast) == pytest.approx(1.0, abs=0.1)


def test_a_trainer_that_is_a_little_slower_is_not_cut() -> None:
    machines = [Machine(0.02 / 0.95), Machine(0.02)]
    assert simulate(machines, 600.0) == 0
    assert share(*machines) > 0.9


def test_a_trainer_that_recovers_is_cut_no_more() -> None:
    slow, fast = machines = [Machine(0.06), Machine(0.02)]
    cluster = Cluster(machines)
    cluster.run(60.0)
    assert slow.micro_batches == pytest.approx(3.0, rel=0.1)
    slow.example_seconds = 0.02
    cluster.run(120.0)
    assert (slow.micro_batches, fast.micro_batches) == (1.0, 1.0)
    slow.example_seconds = 0.06
    cluster.run(60.0)
    assert slow.micro_batches == pytest.approx(3.0, rel=0.1)


def test_where_parts_cost_too_much_a_batch_takes_no_more_than_about_twice_its_time() -> None:
    """At 20 times slower and 10% of a step for each update, no number of parts makes the counts equal."""
    slow, fast = machines = [Machine(0.36, 0.04), Machine(0.018, 0.002)]
    simulate(machines, 600.0)
    uncut_batches = 600.0 / 0.4
    assert slow.batches > 0.45 * uncut_batches
    assert 0.2 < share(slow, fast) < 0.5
    assert slow.micro_batches == pytest.approx(9.0, rel=0.25)


def test_the_parts_are_bounded_where_they_cost_nothing() -> None:
    slow, fast = machines = [Machine(2.0), Machine(0.02)]
    simulate(machines, 600.0)
    assert slow.micro_batches == MAX_MICRO_BATCHES
    assert share(slow, fast) < 0.7


def test_an_order_that_is_lost_is_given_again() -> None:
    machines = [Machine(0.06), Machine(0.02)]
    assert simulate(machines, 30.0, balanced=False) > 5
    assert machines[0].micro_batches == 1.0


def test_when_the_fastest_is_lost_the_next_one_counts() -> None:
    balancer = UpdateBalancer()

    def beats(micro_batches: float, first: int) -> list[float]:
        found = []
        for beat in range(first, first + 20):
            for name, rate, own in (("slow", 10, micro_batches), ("middle", 20, 1.0), ("fast", 40, 1.0)):
                if name == "fast" and first:
                    continue
                counts = UpdateCounts(float(beat), rate * beat, 40 * beat, own)
                if (order := balancer.record_heartbeat(name, counts)) is not None and name == "slow":
                    found.append(order)
        return found

    assert beats(1.0, 0)[-1] == pytest.approx(4.0, rel=0.1)
    balancer.lose("fast")
    assert beats(4.0, 20)[-1] == pytest.approx(2.0, rel=0.5)


def test_one_trainer_alone_is_left_as_it_is() -> None:
    assert simulate([Machine(0.05, noise=0.3)], 60.0) == 0
