"""Following a job: from its statuses to the number of its trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.clients.autoscale import Decision, TrainerCounts, rules_of
from shadowsync.nodes.clients.count_law import CountRules
from shadowsync.pipeline.errors import JobFileError
from shadowsync.watch.status import Status

RULES = CountRules(1, 16, window_seconds=30.0, join_seconds=10.0)


def status(seconds: float, trained: float, trainers: int, **more: Any) -> Status:
    nodes = [{"name": f"trainer-{i}", "role": "trainer", "index": i} for i in range(trainers)]
    standard: dict[str, Any] = {
        "run": "job",
        "algorithm": "easgd",
        "mode": "shadow",
        "phase": "training",
        "seconds": seconds,
        "progress": {"trained": int(trained), "distinct": int(trained)},
        "nodes": [*nodes, {"name": "reader-0", "role": "reader", "index": 0}],
    }
    return Status.model_validate(standard | more)


def follow(rate: Callable[[int], float], start: int, seconds: int, rules: CountRules = RULES) -> list[int]:
    """The counts of a job that obeys at once and trains at `rate`, asked every second."""
    counts, trained, trainers = TrainerCounts(rules), 0.0, start
    seen = [start]
    for second in range(seconds):
        trained += rate(trainers)
        decision = counts.decide(status(float(second), trained, trainers))
        if decision is not None and decision.planned != trainers:
            trainers = decision.planned
            seen.append(trainers)
    return seen


def test_a_job_that_scales_is_doubled_until_its_most() -> None:
    assert follow(lambda n: 1000.0 * n, 1, 400) == [1, 2, 4, 8, 16]


def test_a_job_that_does_not_scale_stays_or_goes_back() -> None:
    assert follow(lambda _: 1000.0, 1, 400) in ([1], [1, 2, 1])
    seen = follow(lambda n: min(1000.0 * n, 4000.0), 2, 2000)
    assert max(seen) == 8
    assert 4 <= seen[-1] <= 6, "it tried 8, and went back"
    assert follow(lambda n: min(1000.0 * n, 4000.0), 16, 400) == [16], "one count says nothing of others"


def test_a_target_is_followed() -> None:
    rules = CountRules(1, 16, target=3500.0, worth=0.2)
    assert follow(lambda n: 1000.0 * n, 1, 1000, rules)[-1] == 4
    assert follow(lambda n: 1000.0 * n, 16, 1000, rules)[-1] == 4


def test_a_window_begins_when_the_trainers_are_warm() -> None:
    """Of two trainers the second trains nothing in its first nine seconds, and that is not measured."""
    counts = TrainerCounts(RULES)
    trained = 0.0
    for second in range(45):
        trained += 1000.0 if second < 9 else 2000.0
        counts.decide(status(float(second), trained, 2))
    assert counts.rates == {2: pytest.approx(2000.0)}


def test_a_change_or_another_phase_begins_anew() -> None:
    counts = TrainerCounts(RULES)
    for second in range(38):
        assert counts.decide(status(float(second), 1000.0 * second, 2)) is None
    for second in range(38, 60):
        assert counts.decide(status(float(second), 1000.0 * second, 1)) is None
    assert counts.decide(status(60.0, 60_000.0, 1, phase="closing")) is None
    assert counts.rates == {}, "no window was whole"
    assert TrainerCounts(RULES).decide(status(0.0, 0.0, 0)) is None


def test_a_decision_to_stay_is_told_once_after_each_change() -> None:
    counts, told = TrainerCounts(RULES), []
    for second in range(400):
        decision = counts.decide(status(float(second), 1000.0 * second, 2))
        if decision is not None:
            told.append((decision.present, decision.planned))
            if len(told) == 1:
                # It is refused: the job stays as it is, and it is asked for again in the next window.
                assert decision.planned == 4
    assert set(told) == {(2, 4)}
    few = TrainerCounts(CountRules(1, 2))
    decisions = [few.decide(status(float(second), 1000.0 * second, 2)) for second in range(400)]
    assert [decision.planned for decision in decisions if decision is not None] == [2]


def test_a_change_that_is_refused_is_tried_again_less_and_less_often() -> None:
    def windows(refused: Callable[[int], bool]) -> list[int]:
        """Those in which a job that stays at two trainers was asked for more."""
        counts, asked = TrainerCounts(RULES), []
        for second in range(10, 10 + 30 * 60):
            if counts.decide(status(float(second), 1000.0 * second, 2)) is not None:
                asked.append((second - 20) // 30)
                counts.answered(refused=refused(len(asked)))
        return asked

    assert windows(lambda _: True) == [1, 2, 4, 8, 16, 32, 48]
    # The control; and one that was possible is asked for anew.
    assert windows(lambda _: False) == list(range(1, 60))
    assert windows(lambda number: number != 3)[:6] == [1, 2, 4, 5, 6, 8]


def test_an_idle_window_is_not_measured() -> None:
    """As of a job that waits for further files."""
    counts = TrainerCounts(CountRules(1, 2))
    for second in range(200):
        counts.decide(status(float(second), 1000.0 * min(second, 75), 2))
    assert counts.rates == {2: pytest.approx(1000.0)}


def test_the_text_of_a_decision_has_its_figures() -> None:
    rates = {1: 1000.0, 2: 1800.0}
    assert Decision(2, 3, rates, rates | {3: 2500.0}, RULES).text == (
        "autoscale goes from 2 to 3 trainers: examples/s measured 1,000 with 1 and 1,800 with 2,"
        " expected 2,500 with 3; the next one adds 70% of what one alone trains; 50% is worth it"
    )
    assert Decision(2, 1, {2: 1200.0}, {1: 1000.0, 2: 1200.0}, RULES).text == (
        "autoscale goes from 2 to 1 trainer: examples/s measured 1,200 with 2, expected 1,000 with 1;"
        " the last one adds 20% of what one alone trains; 50% is worth it"
    )
    of_two = {2: 2000.0, 4: 2400.0}
    assert Decision(4, 2, of_two, of_two, CountRules(2, 4)).text == (
        "autoscale goes from 4 to 2 trainers: examples/s measured 2,000 with 2 and 2,400 with 4;"
        " the last 2 each add 20% of what one of 2 trains; 50% is worth it"
    )


def test_the_text_of_a_decision_to_stay() -> None:
    rates = {1: 1000.0, 2: 1800.0}
    stays = Decision(2, 2, rates, rates | {3: 1900.0}, CountRules(1, 16, target=5e4))
    assert stays.text == (
        "autoscale keeps 2 trainers: examples/s measured 1,000 with 1 and 1,800 with 2,"
        " expected 1,900 with 3; the target is 50,000; the next one adds 10% of what one alone trains"
    )
    # The most, so that it is the last one that is held against what it costs; and the only number there is.
    assert (
        "; the last one adds 80% of what one alone trains"
        in Decision(2, 2, rates, rates, CountRules(1, 2)).text
    )
    only = Decision(2, 2, {2: 1800.0}, {2: 1800.0}, CountRules(2, 2))
    assert only.text == "autoscale keeps 2 trainers: examples/s measured 1,800 with 2"


def test_nothing_joins_that_cannot_pay_before_the_end() -> None:
    def decided(left: float | None) -> int:
        counts = TrainerCounts(RULES)
        for second in range(60):
            progress = {"trained": 1000 * second, "distinct": 1000 * second, "seconds_left": left}
            decision = counts.decide(status(float(second), 0, 2, progress=progress))
            if decision is not None:
                return decision.planned
        raise AssertionError("nothing was decided")

    assert decided(None) == decided(3600.0) == 4, "the control"
    assert decided(20.0) == decided(50.0) == 2


def test_ranges_are_parsed() -> None:
    rules = rules_of("1:8", None)
    assert (rules.least, rules.most, rules.target) == (1, 8, None)
    assert rules_of("2:2", "100k/s").target == 1e5
    for text in ("8", "0:4", "4:2", "a:b", "1:2:3", "-1:4"):
        with pytest.raises(JobFileError, match=r"--autoscale: .* MIN:MAX trainers are needed"):
            rules_of(text, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trainer=2", "--target", "1k/s"], "--target is for --autoscale"),
        (["trainer=2", "--autoscale", "1:4"], "--autoscale chooses the number of trainers itself"),
        (["--autoscale", "4"], "'4' given; MIN:MAX trainers are needed"),
        (["--autoscale", "1:4", "--target", "fast"], "--target: 'fast' given"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["scale", "runs/latest", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
