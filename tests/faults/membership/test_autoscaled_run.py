"""`run --autoscale`: the supervisor changes the number of trainers while the job trains."""

from __future__ import annotations

import asyncio
import json
import signal
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.clients import autoscale
from shadowsync.nodes.clients.autoscale import keep_scaled
from shadowsync.nodes.clients.count_law import CountRules
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.control.base import Done, Request
from shadowsync.pipeline.wire.control.messages import GetStatus
from shadowsync.pipeline.wire.control.orders import StartNode
from shadowsync.pipeline.wire.rpc.client import open_channel
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.jobs.in_process_cluster import SUPERVISOR, InProcessCluster
from shadowsync.tests.support.jobs.processes import Process, Starter, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker
from shadowsync.tests.support.jobs.supervised import Supervised

pytestmark = pytest.mark.no_kill

SECONDS = 120.0
EPOCHS = 6
# Of a trainer that joined it is up to the machine whether it trains before it is told to leave again.
JOINED, LEFT = "joined the running job", "left the job as requested"
LOOK_SECONDS = 0.1
# Short windows, so that decisions come while much of a small job is left: a change has to pay before its end.
# What they are does not depend on how fast it is: any speed reaches the one target, and none the other.
REACHED, OUT_OF_REACH = 1.0, 1e15
SCRIPT = """
import json, sys
from contextlib import closing
from shadowsync.nodes.sync_rules import with_sync_nodes
from shadowsync.nodes.runtime.main_loop import run_interruptible
from shadowsync.nodes.supervisor.starter import make_starter
from shadowsync.nodes.supervisor.supervisor import Supervisor
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.nodes.clients.count_law import CountRules
from shadowsync.nodes.clients import autoscale

autoscale.PERIOD_SECONDS = 0.1
given = json.loads(sys.argv[3])
rules = CountRules(**given, window_seconds=0.2, join_seconds=0.1, worth=0.1) if given else None
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


@pytest.fixture(autouse=True)
def _statuses_are_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small job ends before a supervisor has looked often."""
    monkeypatch.setattr(autoscale, "PERIOD_SECONDS", LOOK_SECONDS)


def _decisions(job: Supervised) -> list[str]:
    return [event.what for event in job.run.report.events if event.what.startswith("autoscale")]


def _interrupted_once_logged(job: Supervised, text: str) -> None:
    """Wait until the coordinator has logged it, and has had batches trained since."""
    wait_until(lambda: job.run.logged(text), text, SECONDS)
    job.wait_for_batches(job.run.batches() + 20, SECONDS)
    job.process.signal(signal.SIGINT)
    assert job.process.wait(SECONDS) == ExitCode.INTERRUPTED, job.process.text()
    assert job.run.report.ledger.adds_up, job.run.report.ledger.identities


@pytest.mark.matrix
@pytest.mark.no_kill
def test_trainers_that_are_not_needed_leave(run: Callable[..., Supervised]) -> None:
    job = run(ENDLESS["epochs"], least=1, most=3, target=REACHED)
    _interrupted_once_logged(job, LEFT)
    report = job.run.report
    first = _decisions(job)[0]
    assert first.startswith("autoscale goes from 2 to 1 trainer: ")
    assert "examples/s measured " in first
    assert "the target is 1;" in first
    assert [event.node for event in report.events if event.what == LEFT] == ["trainer-1"]
    assert report.examples.distinct == report.examples.trained


@pytest.mark.matrix
def test_trainers_join_while_they_are_needed(run: Callable[..., Supervised]) -> None:
    job = run(ENDLESS["epochs"], least=1, most=3, target=OUT_OF_REACH)
    _interrupted_once_logged(job, JOINED)
    assert _decisions(job)[0].startswith("autoscale goes from 2 to 3 trainers: ")
    assert ", expected " in _decisions(job)[0]


@pytest.mark.matrix
def test_without_rules_the_number_stays(run: Callable[..., Supervised]) -> None:
    """The control."""
    job = run(EPOCHS)
    assert job.process.wait(SECONDS) == ExitCode.OK, job.process.text()
    report = job.run.report
    assert not _decisions(job)
    assert not [event for event in report.events if "left the job" in event.what or "joined" in event.what]
    assert report.examples.distinct == EPOCHS * EXAMPLES


def rules(target: float) -> CountRules:
    return CountRules(1, 3, target=target, window_seconds=0.2, join_seconds=0.1, worth=0.1)


@contextmanager
def follows(own: InProcessCluster, work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Have a thread follow an endless job, which is interrupted with the block."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(asyncio.run, work)
        try:
            yield
        finally:
            own.coordinator.interrupt()
        following.result(SECONDS)
    assert own.wait(SECONDS) == ExitCode.INTERRUPTED, own.coordinator.text()
    assert own.run.report.ledger.adds_up, own.run.report.ledger.identities


def goes_on_once_logged(own: InProcessCluster, text: str) -> None:
    """Wait until the coordinator has logged it, and has had batches trained for some windows since."""
    wait_until(lambda: own.run.logged(text), text, SECONDS)
    own.wait_for_batches(own.run.batches() + 100)


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_change_that_is_refused_is_an_event_and_the_job_goes_on(
    in_process: Callable[..., InProcessCluster],
) -> None:
    """Nobody is there that could start another trainer."""
    own = in_process({"data": ENDLESS}).start()
    with follows(own, keep_scaled(own.endpoint, rules(OUT_OF_REACH))):
        goes_on_once_logged(own, "that was not possible")
    said = [event.what for event in own.run.report.events if event.node == "coordinator"]
    assert said[0].startswith("autoscale goes from 2 to 3 trainers: ")
    assert said[1].startswith("that was not possible: no supervisor is there")


def test_a_trainer_leaves_a_job_that_is_followed(in_process: Callable[..., InProcessCluster]) -> None:
    own = in_process({"data": ENDLESS}).start()
    with follows(own, keep_scaled(own.endpoint, rules(REACHED))):
        goes_on_once_logged(own, "autoscale keeps 1 trainer")
    assert own.node("trainer-1").wait(SECONDS) == ExitCode.OK
    events = own.run.report.events
    assert [event.node for event in events if "left the job" in event.what] == ["trainer-1"]
    # A number is kept at most once.
    kept = [event.what.split(": ")[0] for event in events if event.what.startswith("autoscale keeps")]
    assert kept == ["autoscale keeps 1 trainer"]


def test_a_trainer_joins_a_job_that_is_followed(in_process: Callable[..., InProcessCluster]) -> None:
    """The test starts what the coordinator orders, as a supervisor does."""
    own = in_process({"data": ENDLESS}, replaces=True).start()

    async def start(request: Request[Any], number: int) -> Done:
        del number
        assert isinstance(request, StartNode)
        await asyncio.to_thread(own.join, request.role, token=request.token)
        return Done()

    async def follow() -> None:
        async with open_channel(own.endpoint, start, identity=SUPERVISOR) as channel:
            await channel.call(GetStatus(), timeout_seconds=SECONDS)
            await keep_scaled(own.endpoint, rules(OUT_OF_REACH))

    with follows(own, follow()):
        wait_until(lambda: own.run.logged(JOINED), JOINED, SECONDS)
    said = [event.what for event in own.run.report.events]
    assert next(what for what in said if what.startswith("autoscale")).startswith(
        "autoscale goes from 2 to 3 trainers: "
    )
    assert ("trainer-2", JOINED) in [(one.node, one.what[: len(JOINED)]) for one in own.run.report.events]
