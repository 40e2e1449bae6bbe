"""Which checkpoint is the best, and when patience is exhausted."""

from __future__ import annotations

import pytest
from shadowsync.nodes.coordinator.state.outcome import Scored, ValidationState
from shadowsync.pipeline.config.sections import ValidationSection


def judge(values: list[float], **settings: object) -> tuple[list[bool], ValidationState]:
    state = ValidationState(ValidationSection.model_validate({"every_examples": 1, **settings}))
    return [state.add(Scored(at, float(at), value)) for at, value in enumerate(values)], state


def test_the_lowest_ne_and_the_highest_auc() -> None:
    values = [0.9, 0.8, 0.85, 0.7]
    best, state = judge(values)
    assert best == [True, True, False, True]
    assert state.best == Scored(3, 3.0, 0.7)
    best, state = judge(values, metric="auc")
    assert best == [True, False, False, False]
    assert state.best == Scored(0, 0.0, 0.9)
    assert [point.value for point in state.points] == values


@pytest.mark.parametrize("label", ["", "/bought"])
@pytest.mark.parametrize(
    ("metric", "highest"),
    [("logloss", 0), ("calibration_error", 0), ("pr_auc", 1), ("lift", 1)],
)
def test_each_metric_has_a_direction(metric: str, highest: bool, label: str) -> None:
    best, _ = judge([0.5, 0.4, 0.6], metric=metric + label)
    assert best == ([True, False, True] if highest else [True, True, False])


def test_patience_counts_those_in_a_row() -> None:
    _, state = judge([0.9, 0.91, 0.8, 0.81], patience=2)
    assert not state.exhausted
    state.add(Scored(4, 4.0, 0.8))
    assert state.exhausted
    _, state = judge([0.9, 0.91, 0.92, 0.93])
    assert not state.exhausted


@pytest.mark.parametrize(("min_delta", "improved"), [(0.0, True), (0.05, True), (0.2, False)])
def test_what_is_better_by_too_little_is_no_improvement(min_delta: float, improved: bool) -> None:
    best, _ = judge([0.9, 0.8], min_delta=min_delta)
    assert best == [True, improved]


def test_equal_is_no_improvement() -> None:
    best, _ = judge([0.9, 0.9])
    assert best == [True, False]


def test_whether_a_value_improves_is_asked_before_it_counts() -> None:
    _, state = judge([0.9])
    before = state.best
    assert state.improves(0.8)
    assert not state.improves(0.95)
    assert (state.best, len(state.points), state.without_improvement) == (before, 1, 0)
