"""An emulated trainer that stands still now and then, and for whom rounds wait or not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker

STOPS = Timing(stop_seconds=1.0, stop_every_seconds=3.0)
"""Runs for 2 s, stands still for 1 s."""


@pytest.mark.parametrize(
    ("began", "seconds", "lasts"),
    [
        (0.0, 1.5, 1.5),
        (0.5, 1.5, 1.5),
        (1.5, 1.0, 2.0),
        (2.5, 1.0, 1.5),
        (2.5, 0.0, 0.5),
        (0.5, 0.0, 0.0),
        (3.0, 0.0, 0.0),
        (1.0, 5.0, 7.0),
    ],
)
def test_work_goes_on_after_a_stop(began: float, seconds: float, lasts: float) -> None:
    assert STOPS.lasts(0, began, seconds) == pytest.approx(lasts)
    assert STOPS.lasts(1, began, seconds) == seconds, "another trainer runs on"
    assert Timing().lasts(0, began, seconds) == seconds, "to the bit, as without stops"


def test_a_trainer_that_never_runs_is_refused() -> None:
    with pytest.raises(ValidationError, match="stop_seconds: 3 given; give less than stop_every_seconds, 3"):
        Timing(stop_seconds=3.0, stop_every_seconds=3.0)


def _rounds_a_second(job_file: JobMaker, algorithm: str, timing: Timing) -> tuple[float, VirtualResult]:
    trainer = {"count": 3, "batch": 64}
    sync = {"algorithm": algorithm, "gap": 4, "duty": 1.0}
    job = load_job(str(job_file({"trainer": trainer, "sync": sync})))
    result = run_virtual(job, timing)
    assert result.examples == EXAMPLES
    return result.rounds / result.seconds, result


def test_rounds_of_all_wait_for_one_that_stands_still_and_merges_do_not(job_file: JobMaker) -> None:
    stops = Timing(stop_seconds=0.5, stop_every_seconds=1.0)
    share = {}
    for algorithm in ("bmuf", "decoupled"):
        undisturbed, _ = _rounds_a_second(job_file, algorithm, Timing())
        disturbed, result = _rounds_a_second(job_file, algorithm, stops)
        share[algorithm] = disturbed / undisturbed
        still, *others = result.iterations
        assert still < 0.75 * min(others), "it trains only while it runs"
    # Two thirds of them are the others', and half of the third one's are left.
    assert share["decoupled"] > 0.8
    assert share["bmuf"] < 0.7
