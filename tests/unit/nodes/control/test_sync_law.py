"""The law that sets gap and elastic rate, against simulated jobs whose ratio follows from them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.control.sync_law import (
    LONGEST_PATIENCE_WINDOWS,
    MAX_DECISIONS,
    RATIO_POWER,
    ControlSample,
    SyncLaw,
    SyncSettings,
)
from shadowsync.pipeline.config.sections import SyncSection

ITERATIONS_PER_SAMPLE = 4.0
SAMPLES = 4000

Ratio = Callable[[SyncSettings], float]


class SimulatedJob:
    """A job whose ratio follows from the settings, and whose rounds come no faster than its link allows."""

    def __init__(self, controller: SyncLaw, ratio: Ratio, *, fastest_gap: float = 0.0) -> None:
        self.controller = controller
        self.ratio = ratio
        self.fastest_gap = fastest_gap
        self.iterations = self.rounds = 0.0
        self.settings: list[SyncSettings] = [controller.settings]

    def train(self, samples: int = SAMPLES) -> SimulatedJob:
        """Feed so many samples; what was set is in `settings`."""
        for _ in range(samples):
            now = self.controller.settings
            self.iterations += ITERATIONS_PER_SAMPLE
            gap = max(now.gap, self.fastest_gap)
            self.rounds += ITERATIONS_PER_SAMPLE / gap
            # The distance is that of the gap which rounds really come at.
            ratio = self.ratio(SyncSettings(int(min(gap, 1e6)), now.elastic_rate))
            changed = self.controller.sample(
                ControlSample(self.iterations / 50, self.iterations, self.rounds, ratio)
            )
            assert changed == (self.controller.settings != now)
            if changed:
                self.settings.append(self.controller.settings)
        return self

    @property
    def gaps(self) -> list[int]:
        """The gaps that were set, in order."""
        return [one.gap for one in self.settings]


def controller(elastic: tuple[float, float] | None = None, **sync: object) -> SyncLaw:
    return SyncLaw(SyncSection.model_validate({"control": "auto", **sync}), elastic)


@pytest.mark.parametrize(
    ("power", "factor", "first", "expected"),
    [
        # Ratio = factor * gap ** power, bound 1: the largest gap within it, less what noise may make of it.
        (1.0, 0.1, 1, range(7, 11)),
        (1.0, 0.1, 64, range(7, 11)),
        (0.5, 0.4, 1, range(3, 7)),
        (0.5, 0.4, 64, range(4, 7)),
        (0.5, 0.04, 1, range(64, 65)),
        (1.0, 0.9, 8, range(1, 2)),
    ],
)
def test_it_finds_the_gap_that_the_bound_allows(
    power: float, factor: float, first: int, expected: range
) -> None:
    job = SimulatedJob(controller(gap=first), lambda now: factor * now.gap**power).train()
    assert job.gaps[-1] in expected
    report = job.controller.report()
    assert report.ratio is not None
    assert report.ratio <= 1.0
    assert report.kept
    assert (report.first_gap, report.gap) == (first, job.gaps[-1])


def test_a_tighter_bound_gives_a_smaller_gap() -> None:
    """The control of the test above: it is the bound that decides."""
    gaps = [
        SimulatedJob(controller(control_bound=bound), lambda now: 0.4 * now.gap**0.5).train().gaps[-1]
        for bound in (0.6, 1.0, 2.0)
    ]
    assert gaps == sorted(set(gaps))


@given(
    power=st.floats(0.1, 1.0),
    factor=st.floats(0.001, 5.0),
    first=st.integers(1, 64),
    bound=st.floats(0.05, 5.0),
)
def test_it_turns_back_ever_more_seldom(power: float, factor: float, first: int, bound: float) -> None:
    job = SimulatedJob(controller(gap=first, control_bound=bound), lambda now: factor * now.gap**power)
    gaps = job.train(8000).gaps
    assert all(1 <= gap <= 64 for gap in gaps)
    rises = [after > before for before, after in pairwise(gaps)]
    turns = sum(before and not after for before, after in pairwise(rises))
    # Once at first, then after 8 windows, 16 and 32, and every 64.
    assert turns <= 4 + job.controller.report().windows / LONGEST_PATIENCE_WINDOWS


@given(factor=st.floats(0.01, 5.0), first=st.integers(1, 64))
def test_where_the_ratio_grows_as_in_the_lab_it_comes_to_rest(factor: float, first: int) -> None:
    job = SimulatedJob(controller(gap=first), lambda now: factor * now.gap**RATIO_POWER).train()
    assert job.train(400).gaps == job.gaps
    signs = [after > before for before, after in pairwise(job.gaps)]
    assert signs == sorted(signs)


def test_noise_does_not_make_it_swing() -> None:
    noise = random.Random(1)
    job = SimulatedJob(controller(), lambda now: 0.4 * now.gap**0.5 * noise.uniform(0.9, 1.1))
    job.train()
    settled = job.gaps[len(job.gaps) // 2 :]
    assert max(settled) - min(settled) <= 2
    assert len(job.gaps) < 20


def test_it_tightens_when_the_data_change_and_loosens_when_they_change_back() -> None:
    skew = 1.0
    job = SimulatedJob(controller(), lambda now: 0.3 * skew * now.gap**0.5).train(1000)
    mixed = job.gaps[-1]
    skew = 2.0
    tight = job.train(1000).gaps[-1]
    skew = 1.0
    assert tight < mixed == job.train(1000).gaps[-1]


def test_a_bound_out_of_reach_leaves_the_smallest_gap_and_says_so() -> None:
    report = SimulatedJob(controller(gap=16), lambda now: 3.0 * now.gap).train().controller.report()
    assert report.gap == 1
    assert report.ratio == report.ratio_lowest == 3.0
    assert report.windows_within == 0
    assert not report.kept
    assert not report.held_up


def test_what_the_link_does_not_allow_is_not_asked_for() -> None:
    """The bound wants a gap of 4, and rounds come every 20 iterations at best."""
    job = SimulatedJob(controller(), lambda now: 0.5 * now.gap**0.5, fastest_gap=20.0).train(150)
    assert job.gaps == [1, 20]
    (made,) = job.controller.report().decisions
    assert made.why == "rounds came only every 20 iterations, limited by the duty cycle or the link"
    assert not job.controller.report().kept


def test_a_link_that_has_room_again_is_used_again() -> None:
    job = SimulatedJob(controller(), lambda now: 0.5 * now.gap**0.5, fastest_gap=20.0).train(300)
    job.fastest_gap = 0.0
    job.train()
    assert job.gaps[-1] <= 4
    assert job.controller.report().kept


def test_a_link_that_stays_full_is_asked_ever_more_seldom() -> None:
    job = SimulatedJob(controller(), lambda now: 0.5 * now.gap**0.5, fastest_gap=20.0).train(20_000)
    requested = sum(gap < 20 for gap in job.gaps[1:])
    assert 1 <= requested <= 4 + job.controller.report().windows / LONGEST_PATIENCE_WINDOWS
    assert job.gaps[-1] == 20


def test_without_any_round_it_takes_the_largest_gap() -> None:
    job = SimulatedJob(controller(), lambda _: 2.0, fastest_gap=math.inf).train(40)
    assert job.gaps == [1, 64]
    assert job.controller.report().decisions[0].why.startswith("no round was completed, ")
    assert job.train(100).controller.report().held_up


def test_where_the_gap_cannot_fall_the_rate_moves_to_that_of_the_closest_replicas() -> None:
    def ratio(now: SyncSettings) -> float:
        assert now.elastic_rate is not None
        return math.sqrt(now.gap) * (0.6 + abs(0.5 - now.elastic_rate))

    job = SimulatedJob(controller((0.1, 0.5), control_bound=0.8), ratio).train()
    assert {one.gap for one in job.settings} == {1}
    assert [one.elastic_rate for one in job.settings] == [0.1, pytest.approx(0.3)]
    assert job.controller.report().kept


def test_a_rate_is_undone_before_the_gap_grows() -> None:
    factor = 2.0
    job = SimulatedJob(controller((0.1, 0.5)), lambda now: factor * now.gap**0.5).train(400)
    assert job.settings[-1] == SyncSettings(1, 0.5)
    factor = 0.1
    later = job.train().settings
    undone = later.index(SyncSettings(1, 0.1), 1)
    assert all(one.gap == 1 for one in later[: undone + 1])
    assert later[-1].gap > 1
    assert later[-1].elastic_rate == 0.1


def test_a_rate_that_is_the_closest_one_stays() -> None:
    job = SimulatedJob(controller((0.5, 0.5)), lambda now: 2.0 * now.gap).train()
    assert job.settings == [SyncSettings(1, 0.5)]


def test_the_first_iterations_whose_gap_grows_are_left_out() -> None:
    job = SimulatedJob(controller(gap=8, start_iterations=200), lambda _: 9.0).train(49)
    assert job.controller.report().windows == 0
    assert job.train(50).gaps[-1] < 8


def test_trainers_that_are_gone_leave_no_window_behind() -> None:
    one = controller(gap=8)
    for at in range(1, 9):
        one.sample(ControlSample(float(at), 4.0 * at, 0.5 * at, 0.1))
    one.forget_window()
    # The mean over fewer trainers may be lower: no window reaches from before to after.
    for at in range(1, 8):
        one.sample(ControlSample(float(at), 4.0 * at, 0.5 * at, 0.1))
    assert one.report().windows == 0


def test_decisions_are_thinned_and_counted() -> None:
    phase = 0
    job = SimulatedJob(controller(), lambda now: 0.1 * (1 + 9 * (phase % 2)) * now.gap)
    for phase in range(200):  # noqa: B007
        job.train(200)
    report = job.controller.report()
    assert report.decision_count == len(job.gaps) - 1 > MAX_DECISIONS
    assert MAX_DECISIONS // 2 <= len(report.decisions) <= MAX_DECISIONS
    assert report.decisions[-1].gap == job.gaps[-1]
    assert [one.seconds for one in report.decisions] == sorted(one.seconds for one in report.decisions)
