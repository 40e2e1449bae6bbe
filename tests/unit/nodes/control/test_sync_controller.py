"""From samples of replicas to the ratio that is controlled, and when samples are wanted."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.control.sync_controller import (
    HORIZON_ITERATIONS,
    LONGEST_PAUSE_SECONDS,
    SHORTEST_PAUSE_SECONDS,
    ReplicaMotion,
    ReplicaPoint,
    SyncController,
    control_of,
)
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.types import Float32Array

ELEMENTS = 64
AUTO = SyncSection.model_validate({"control": "auto"})


def replicas(center: float, *distances: float) -> list[Float32Array]:
    """Replicas whose mean is `center` in each element, if the distances sum to 0."""
    return [np.full(ELEMENTS, center + distance, np.float32) for distance in distances]


def test_it_is_the_distance_over_the_movement() -> None:
    motion = ReplicaMotion()
    assert motion.add(0.0, replicas(0.0, 0.5, -0.5)) is None
    assert motion.add(HORIZON_ITERATIONS - 1, replicas(1.0, 0.5, -0.5)) is None
    assert motion.add(HORIZON_ITERATIONS, replicas(2.0, 0.5, -0.5)) == pytest.approx(0.25)
    # From the latest sample that is a horizon back: the mean was at 2 then, and one replica is on it.
    ratio = motion.add(2 * HORIZON_ITERATIONS, replicas(3.0, 0.6, -0.6, 0.0))
    assert ratio == pytest.approx(0.4)


def test_a_movement_over_more_iterations_counts_in_proportion() -> None:
    motion = ReplicaMotion()
    motion.add(0.0, replicas(0.0, 0.5, -0.5))
    assert motion.add(4 * HORIZON_ITERATIONS, replicas(2.0, 0.5, -0.5)) == pytest.approx(1.0)


def test_what_does_not_move_has_no_ratio() -> None:
    motion = ReplicaMotion()
    motion.add(0.0, replicas(0.0, 0.5, -0.5))
    assert motion.add(HORIZON_ITERATIONS, replicas(0.0, 0.5, -0.5)) is None


def test_far_back_samples_are_dropped() -> None:
    motion = ReplicaMotion()
    for at in range(1000):
        motion.add(float(at), replicas(float(at), 0.5, -0.5))
    assert len(motion._means) == HORIZON_ITERATIONS + 1


def samples(trainers: int, at: int) -> dict[str, ReplicaPoint]:
    distances = np.linspace(-3.0, 3.0, trainers)
    values = replicas(float(at), *distances)
    return {f"trainer-{n}": ReplicaPoint(one, at, at) for n, one in enumerate(values)}


def test_a_trainer_that_is_gone_is_no_movement() -> None:
    control = SyncController(SyncSection.model_validate({"control": "auto", "gap": 8}), None)
    for at in range(0, 200, 5):
        control.add(at / 50, samples(3, at))
    windows = control.report().windows
    assert windows > 1
    for at in range(200, 200 + HORIZON_ITERATIONS, 5):
        control.add(at / 50, samples(2, at))
    assert control.report().windows == windows


@pytest.mark.parametrize(
    ("iterations_per_second", "pause"),
    [(1.0, LONGEST_PAUSE_SECONDS), (10.0, 0.4), (1e6, SHORTEST_PAUSE_SECONDS)],
)
def test_samples_are_wanted_some_iterations_apart(iterations_per_second: float, pause: float) -> None:
    control = SyncController(AUTO, None)
    assert control.pause_seconds == SHORTEST_PAUSE_SECONDS
    control.add(10.0, samples(2, int(10 * iterations_per_second)))
    assert control.pause_seconds == pytest.approx(pause)


def test_only_several_trainers_of_a_job_that_wants_it_are_controlled() -> None:
    assert control_of(AUTO, 2, None) is not None
    assert control_of(AUTO, 1, None) is None
    assert control_of(SyncSection(gap=4), 2, None) is None
