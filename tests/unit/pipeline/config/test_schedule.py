"""The factor on the learning rates, against closed forms, and what is said of settings that make none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from shadowsync.pipeline.config.trainer import ScheduleSection


def _make(kind: str, **settings: Any) -> ScheduleSection:
    return ScheduleSection.model_validate({"kind": kind, **settings})


@pytest.mark.parametrize(
    ("schedule", "examples", "expected"),
    [
        (_make("constant"), 1, 1.0),
        (_make("constant"), 10**12, 1.0),
        (_make("constant", warmup_examples=100), 1, 0.01),
        (_make("constant", warmup_examples=100), 50, 0.5),
        (_make("constant", warmup_examples=100), 100, 1.0),
        (_make("linear", decay_examples=1000), 250, 0.75),
        (_make("linear", decay_examples=1000, final=0.2), 250, 0.2 + 0.8 * 0.75),
        (_make("linear", warmup_examples=200, decay_examples=1000), 100, 0.5),
        (_make("linear", warmup_examples=200, decay_examples=1000), 600, 0.5),
        (_make("linear", decay_examples=1000, final=0.1), 5000, 0.1),
        (_make("cosine", decay_examples=1000), 250, 0.5 * (1 + math.cos(math.pi / 4))),
        (_make("cosine", decay_examples=1000, final=0.5), 500, 0.75),
        (_make("cosine", decay_examples=1000), 1000, 0.0),
        (_make("inverse_sqrt", warmup_examples=100), 25, 0.25),
        (_make("inverse_sqrt", warmup_examples=100), 400, 0.5),
        (_make("inverse_sqrt", warmup_examples=100, final=0.3), 10**6, 0.3),
        (_make("step", step_examples=100, gamma=0.1), 99, 1.0),
        (_make("step", step_examples=100, gamma=0.1), 250, 0.01),
        (_make("step", warmup_examples=50, step_examples=100, gamma=0.1), 149, 1.0),
        (_make("step", warmup_examples=50, step_examples=100, gamma=0.1), 150, 0.1),
        (_make("step", step_examples=1, gamma=0.5, final=0.01), 10**9, 0.01),
        (_make("cosine_restarts", step_examples=100), 0, 1.0),
        (_make("cosine_restarts", step_examples=100), 350, 0.5),
        (
            _make("cosine_restarts", step_examples=100, final=0.2),
            125,
            0.2 + 0.4 * (1 + math.cos(math.pi / 4)),
        ),
        (_make("cosine_restarts", warmup_examples=50, step_examples=100), 25, 0.5),
        (_make("cosine_restarts", warmup_examples=50, step_examples=100), 250, 1.0),
        (_make("cyclic", step_examples=100), 25, 0.75),
        (_make("cyclic", step_examples=100), 125, 0.25),
        (_make("cyclic", step_examples=100), 200, 1.0),
        (_make("cyclic", warmup_examples=50, step_examples=100, final=0.5), 1100, 0.75),
    ],
)
def test_closed_forms(schedule: ScheduleSection, examples: int, expected: float) -> None:
    assert schedule.factor(examples) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(
    st.sampled_from(["constant", "linear", "cosine", "inverse_sqrt", "step"]),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.floats(0, 1),
    st.lists(st.integers(0, 10**9), min_size=2, max_size=20),
)
def test_it_grows_to_one_and_then_never_again(
    kind: str, warmup: int, more: int, final: float, counts: list[int]
) -> None:
    schedule = _make(
        kind, warmup_examples=warmup, decay_examples=warmup + more, step_examples=more, final=final
    )
    assert schedule.factor(warmup) == pytest.approx(1.0)
    factors = [schedule.factor(count) for count in sorted(counts)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    late = [schedule.factor(count) for count in sorted(counts) if count >= warmup]
    assert late == sorted(late, reverse=True)
    early = [schedule.factor(count) for count in sorted(counts) if count < warmup]
    assert early == sorted(early)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "linear"}, "trainer.schedule.decay_examples: 0 given; linear needs"),
        ({"kind": "cosine", "warmup_examples": 10, "decay_examples": 10}, r"above warmup_examples \(10\)"),
        ({"kind": "inverse_sqrt"}, "trainer.schedule.warmup_examples: 0 given; inverse_sqrt needs"),
        ({"kind": "step"}, "trainer.schedule.step_examples: 0 given; step needs"),
        ({"kind": "cyclic"}, "trainer.schedule.step_examples: 0 given; cyclic needs"),
        ({"kind": "cosine_restarts"}, "trainer.schedule.step_examples: 0 given; cosine_restarts needs"),
    ],
)
def test_settings_that_make_none(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ScheduleSection.model_validate(settings)
