"""Curves that travel by parts, and the status that they are part of."""

from __future__ import annotations

import random

import pytest
from shadowsync.nodes.control.progress import TrainingMetrics
from shadowsync.pipeline.errors import ProtocolError
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.watch.curves import CHANGING_POINTS, ClientCurves, parts_of
from shadowsync.watch.mirror import MOST_INCIDENTS, Mirror
from shadowsync.watch.status import CurvePart, Incident, read_status


def test_a_client_that_asks_now_and_then_has_the_whole_curves() -> None:
    """Through thousands of points, so that buckets are joined again and again."""
    metrics, client, sent = TrainingMetrics(), ClientCurves(), 0
    draw = random.Random(1)
    for step in range(3000):
        metrics.trained(f"trainer-{step % 2}", step * 0.1, 512, 512 * 0.4, 128)
        if draw.random() < 0.2:
            parts = parts_of(metrics.curves(step * 0.1), client.cursor())
            sent += sum(len(part.points) for part in parts.values())
            client.merge(parts)
    now = 3000 * 0.1
    client.merge(parts_of(metrics.curves(now), client.cursor()))
    wanted = metrics.curves(now)
    assert {"ne", "throughput/trainer-0", "throughput/trainer-1"} == set(wanted)
    for name, (step_width, points) in wanted.items():
        assert client.points(name) == points, name
        assert client.whole()[name].step == step_width
    whole = sum(len(points) for _, points in wanted.values())
    assert sent < 600 * whole / 4, "the control: what sending it whole each time would take"


def test_only_what_may_have_changed_is_sent_again() -> None:
    points = [(float(x), 1.0) for x in range(100)]
    (part,) = parts_of({"ne": (1.0, points)}, {"ne": (1.0, 100)}).values()
    assert (part.start, len(part.points)) == (100 - CHANGING_POINTS, CHANGING_POINTS)
    (other_step,) = parts_of({"ne": (2.0, points)}, {"ne": (1.0, 100)}).values()
    assert (other_step.start, len(other_step.points)) == (0, 100)
    assert parts_of({"ne": (1.0, [])}, {}) == {}


def test_a_part_that_comes_twice_changes_nothing() -> None:
    client = ClientCurves()
    client.merge({"a": CurvePart(step=1.0, start=0, points=[(1, 1), (2, 2), (3, 3)])})
    again = {"a": CurvePart(step=1.0, start=1, points=[(2, 5), (3, 6)])}
    for _ in range(2):
        client.merge(again)
        assert client.points("a") == [(1, 1), (2, 5), (3, 6)]


def test_a_status_survives_the_wire() -> None:
    status = a_status(seconds=3.0)
    assert read_status(status.model_dump(mode="json")) == status


@pytest.mark.parametrize(
    ("change", "words"),
    [({"version": 99}, "version 99"), ({"seconds": "soon"}, "seconds"), ({"nodes": 3}, "nodes")],
)
def test_a_status_that_cannot_be_read_is_told(change: dict[str, object], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read_status(a_status().model_dump(mode="json") | change)


def test_a_mirror_has_everything_and_a_bounded_number_of_incidents() -> None:
    mirror = Mirror()
    assert mirror.whole() is None
    for number in range(1, MOST_INCIDENTS + 11):
        incident = Incident(number=number, seconds=float(number), node="trainer-0", what="died")
        mirror.take(a_status(incidents=[incident]))
    whole = mirror.whole()
    assert whole is not None
    assert [incident.number for incident in whole.incidents] == list(range(11, MOST_INCIDENTS + 11))
    assert mirror.cursors()[1] == MOST_INCIDENTS + 10
