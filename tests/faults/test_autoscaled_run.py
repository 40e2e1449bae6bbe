"""`run --autoscale`: the supervisor changes the number of trainers while the job trains."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.processes import Process, Starter, wait_until
from shadowsync.tests.support.runs import EXAMPLES, JobMaker
from shadowsync.tests.support.supervised import Supervised

SECONDS = 120.0
EPOCHS = 6
# Windows of a second, so that decisions come while a small job trains. What they are does not depend on how
# fast it is: any speed reaches the one target, and none the other.
REACHED, OUT_OF_REACH = 1.0, 1e15
SCRIPT = """
import json, sys
from contextlib import closing
from shadowsync.nodes.launch import with_sync_nodes
from shadowsync.nodes.runtime.main_loop import run_interruptible
from shadowsync.nodes.supervisor.starter import make_starter
from shadowsync.nodes.supervisor.supervisor import Supervisor
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.performance.count_law import CountRules

given = json.loads(sys.argv[3])
rules = CountRules(**given, window_seconds=1.0, join_seconds=0.5, worth=0.1) if given else None
job = with_sync_nodes(load_job(sys.argv[2]), may_import=True)
with closing(make_starter()) as starter:
    code, text, report = run_interruptible(
        lambda: Supervisor(job, lambda status: None, starter, autoscale=rules).run()
    )
print(text)
sys.exit(int(code))
"""


@pytest.fixture
def run(starter: Starter, job_file: JobMaker, tmp_path: Path) -> Callable[..., Supervised]:
    """Starts a job of two trainers under a supervisor with rules."""

    def start(epochs: int, **rules: float) -> Supervised:
        job = job_file({"data": {"epochs": epochs}, "trainer": {"count": 2}})
        script = tmp_path / "supervise.py"
        script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        process: Process = starter.fork("supervisor", str(job), json.dumps(rules), script=script)
        return Supervised(process, tmp_path / "runs")

    return start


def _decisions(job: Supervised) -> list[str]:
    return [event.what for event in job.run.report.events if event.what.startswith("autoscale")]


def test_trainers_that_are_not_needed_leave_and_the_job_ends_as_usual(
    run: Callable[..., Supervised],
) -> None:
    job = run(EPOCHS, least=1, most=3, target=REACHED)
    assert job.process.wait(SECONDS) == ExitCode.OK, job.process.text()
    report = job.run.report
    first = _decisions(job)[0]
    assert first.startswith("autoscale goes from 2 to 1 trainer: ")
    assert "with 2 examples/s measured" in first
    assert "target 1" in first
    assert [event.node for event in report.events if event.what == "left the job as requested"] == [
        "trainer-1"
    ]
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == report.examples.trained == EPOCHS * EXAMPLES


def test_trainers_join_while_they_are_needed(run: Callable[..., Supervised]) -> None:
    job = run(ENDLESS["epochs"], least=1, most=3, target=OUT_OF_REACH)
    job.wait_for_batches(40)
    of_it = "SELECT count(*) FROM batches WHERE trainer = 'trainer-2'"
    wait_until(lambda: job.run.query(of_it)[0][0] > 0, "trainer-2 trains", SECONDS)
    job.process.signal(signal.SIGINT)
    assert job.process.wait(SECONDS) == ExitCode.INTERRUPTED, job.process.text()
    assert _decisions(job)[0].startswith("autoscale goes from 2 to 3 trainers: ")
    assert "expected with 3" in _decisions(job)[0]
    assert job.run.report.ledger.adds_up, job.run.report.ledger.identities


def test_without_rules_the_number_stays(run: Callable[..., Supervised]) -> None:
    """The control."""
    job = run(EPOCHS)
    assert job.process.wait(SECONDS) == ExitCode.OK, job.process.text()
    report = job.run.report
    assert not _decisions(job)
    assert not [event for event in report.events if "left the job" in event.what or "joined" in event.what]
    assert report.examples.distinct == EPOCHS * EXAMPLES
