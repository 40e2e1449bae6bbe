"""A key that another one makes ineffective is said by `run`, in the coordinator's log and in the report."""

from __future__ import annotations

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import JobMaker

SAID = "trainer.lookups_ahead: 16 acts as 3"


@pytest.mark.matrix
def test_log_and_report_say_it(cluster: ClusterMaker) -> None:
    alone = 'sync.algorithm: "none" leaves 2 trainers without synchronization'
    run = finished(cluster, {"trainer": {"lookups_ahead": 16, "credit": 4}, "sync": {"algorithm": "none"}})
    for said in (SAID, alone):
        assert len([text for text in run.report.warnings if text.startswith(said)]) == 1
        assert any(line["text"].startswith(said) for line in run.log("coordinator"))
    # The control: a credit that is enough, and a trainer that is alone.
    settings = {"lookups_ahead": 16, "credit": 17, "count": 1}
    run = finished(cluster, {"trainer": settings, "sync": {"algorithm": "none"}})
    about = ("lookups_ahead", "without synchronization")
    assert not [text for text in run.report.warnings if any(words in text for words in about)]


def test_run_says_it_before_anything_else(starter: Starter, job_file: JobMaker) -> None:
    job = job_file({"trainer": {"lookups_ahead": 16, "credit": 4}, "model": {"name": "none_such"}})
    assert SAID in starter.ended("run", str(job), code=2)
