"""A study without jobs: what is stopped, what is remembered, and whether it pays."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from shadowsync.lab.tuning.space import Parameters, parse_space
from shadowsync.lab.tuning.study import Outcome, ReportRung, Study, StudyRules
from shadowsync.tests.support.coordinator.planted_best import examples_to_find

SPACE = parse_space(["trainer.lr=0.0..1.0"])
ASHA, RANDOM = StudyRules(), StudyRules(strategy="random")


def trained(_number: int, parameters: Parameters, report: ReportRung) -> Outcome:
    """The NE is the learning rate, at every rung and at the end."""
    for rung in range(3):
        if report(rung, parameters["trainer.lr"]):
            return Outcome(None, 100 * 3**rung, stopped=True)
    return Outcome(parameters["trainer.lr"], 2700)


def test_rungs_are_shares_of_the_examples() -> None:
    assert ASHA.shares == pytest.approx([1 / 27, 1 / 9, 1 / 3])
    assert StudyRules(reduction=2, rungs=1).shares == [0.5]
    assert RANDOM.shares == []


def test_of_three_trials_at_a_rung_one_goes_on() -> None:
    study = Study(SPACE, ASHA)
    for _ in range(60):
        study.advance(trained)
    states = [trial.state for trial in study.trials]
    at_first = sum(len(trial.rungs) == 1 for trial in study.trials)
    assert set(states) == {"complete", "stopped"}
    # The sampler soon draws good ones, so more go on than a third; but not all.
    assert 15 <= at_first <= 55
    best = study.best
    assert best is not None
    assert best.ne == min(
        trial.parameters["trainer.lr"] for trial in study.trials if trial.state == "complete"
    )
    stopped = [trial for trial in study.trials if trial.state == "stopped"]
    assert all(trial.ne is None and trial.examples < 2700 for trial in stopped)


def test_the_control_stops_nothing() -> None:
    study = Study(SPACE, RANDOM)
    for _ in range(20):
        study.advance(trained)
    assert {trial.state for trial in study.trials} == {"complete"}


def test_what_fails_is_told_and_an_interrupted_trial_is_not_one(tmp_path: Path) -> None:
    def fails(*_: Any) -> Outcome:
        return Outcome(None, 10, why="a reader died", folder="runs/trial-0000")

    def interrupted(*_: Any) -> Outcome:
        raise KeyboardInterrupt

    study = Study(SPACE, ASHA, tmp_path / "trials.log")
    failed = study.advance(fails)
    assert (failed.state, failed.why, failed.folder) == ("failed", "a reader died", "runs/trial-0000")
    with pytest.raises(KeyboardInterrupt):
        study.advance(interrupted)
    assert [trial.state for trial in study.trials] == ["failed", "interrupted"]
    assert study.best is None


def test_a_resumed_study_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    journal = tmp_path / "trials.log"
    first = Study(SPACE, ASHA, journal)
    for _ in range(6):
        first.advance(trained)
    before = first.trials
    second = Study(SPACE, ASHA, journal)
    assert second.trials == before
    for _ in range(6):
        second.advance(trained)
    values = [trial.parameters["trainer.lr"] for trial in second.trials]
    assert len(set(values)) == 12, "it does not begin again with the settings that it began with"


def test_a_trial_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    journal = tmp_path / "trials.log"
    Study(SPACE, ASHA, journal)._study.ask()
    assert [trial.state for trial in Study(SPACE, ASHA, journal).trials] == ["interrupted"]


def test_a_planted_best_costs_less_than_at_random() -> None:
    """`benchmarks/quality/tuning.py` takes ten seeds; goal: at most 40% of random search's examples."""
    rules = [ASHA.model_copy(update={"seed": seed}) for seed in range(3)]
    controls = [RANDOM.model_copy(update={"seed": seed}) for seed in range(3)]
    ours = median(examples_to_find(seed, rule, 150) for seed, rule in enumerate(rules))
    at_random = median(examples_to_find(seed, rule, 150) for seed, rule in enumerate(controls))
    assert ours <= 0.4 * at_random
