"""A key that another one makes ineffective is said by `run`, in the coordinator's log and in the report."""

from __future__ import annotations

from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.jobs.resumed import ClusterMaker
from shadowsync.tests.support.jobs.runs import JobMaker

SAID = "trainer.lookups_ahead: 16 acts as 3"


def test_log_and_report_say_it(cluster: ClusterMaker) -> None:
    own = cluster({"trainer": {"lookups_ahead": 16}}).start()
    assert own.wait() == 0, own.coordinator.text()
    (warning,) = [text for text in own.run.report.warnings if "lookups_ahead" in text]
    assert warning.startswith(SAID)
    assert any(line["text"].startswith(SAID) for line in own.run.log("coordinator"))
    own = cluster({"trainer": {"lookups_ahead": 16, "credit": 17}}).start()
    assert own.wait() == 0, own.coordinator.text()
    assert not [text for text in own.run.report.warnings if "lookups_ahead" in text]


def test_run_says_it_before_anything_else(starter: Starter, job_file: JobMaker) -> None:
    job = job_file({"trainer": {"lookups_ahead": 16}, "model": {"name": "none_such"}})
    process = starter.fork("run", str(job))
    wait_until(lambda: process.poll() is not None, "it is refused", 60.0)
    assert process.code == 2, process.text()
    assert SAID in process.text()


def test_trainers_that_never_synchronize_are_said(cluster: ClusterMaker) -> None:
    said = 'sync.algorithm: "none" leaves 2 trainers without synchronization'
    own = cluster({"sync": {"algorithm": "none"}, "trainer": {"count": 2}}).start()
    assert own.wait() == 0, own.coordinator.text()
    assert [text for text in own.run.report.warnings if text.startswith(said)]
    assert any(line["text"].startswith(said) for line in own.run.log("coordinator"))
    own = cluster({"sync": {"algorithm": "none"}, "trainer": {"count": 1}}).start()
    assert own.wait() == 0, own.coordinator.text()
    assert not [text for text in own.run.report.warnings if "without synchronization" in text]
