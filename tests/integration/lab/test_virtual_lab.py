"""The virtual lab and real nodes: where nothing is left to chance, the same figures from both."""

from __future__ import annotations

import pytest
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.deterministic import STEPS, deterministic
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import JobMaker, Settings


def emulated(job_file: JobMaker, settings: Settings, step_seconds: float) -> VirtualResult:
    return run_virtual(load_job(str(job_file(settings))), Timing(step_seconds=step_seconds))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changes",
    [
        {"sync": {"algorithm": "easgd", "mode": "fixed", "every": 7}, "model": {"output_bias": "label_rate"}},
        {
            "sync": {"algorithm": "bmuf", "mode": "fixed", "every": 5},
            "trainer": {"optimizer": "adam", "schedule": {"kind": "linear", "decay_examples": 30_000}},
        },
        {
            "sync": {"algorithm": "easgd", "mode": "fixed", "every": 7, "optimizer_state": "synchronized"},
            "trainer": {"optimizer": "adam"},
        },
    ],
    ids=["easgd", "bmuf, adam", "easgd, adam's state"],
)
def test_a_deterministic_job_gives_the_same_scores(
    cluster: ClusterMaker, job_file: JobMaker, changes: Settings
) -> None:
    """To twelve digits: one bit of one weight that differs would be seen in the seventh."""
    report = finished(cluster, deterministic(changes, 1, "real")).report
    same = emulated(job_file, deterministic(changes, 1, "same"), step_seconds=0.5)
    other = emulated(job_file, deterministic(changes, 2, "other"), step_seconds=0.5)
    assert report.eval is not None
    assert report.eval.ne == pytest.approx(same.ne, abs=1e-12)
    assert report.eval.auc == pytest.approx(same.auc, abs=1e-12)
    assert report.sync.rounds == same.rounds
    assert same.iterations == [STEPS]
    assert other.ne != pytest.approx(report.eval.ne, abs=1e-7), "the control: another seed"
