"""A path that is broken between two living nodes only: an error that names both, and never a hang."""

from __future__ import annotations

import pytest
from shadowsync.nodes.worker import connections
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed, break_path
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

pytestmark = pytest.mark.no_kill

# Two of these are the time after which it is noticed here, and four in any other job.
TIMEOUT_SECONDS = 2.0


@pytest.fixture(autouse=True)
def _is_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "NO_REPLY_TIMEOUTS", connections.NO_REPLY_TIMEOUTS / 2)


@pytest.mark.parametrize("other", ["embedding-0", pytest.param("reader-0", marks=pytest.mark.matrix)])
def test_others_train_what_the_cut_off_trainer_had(in_process: ClusterMaker, other: str) -> None:
    slowed = Slowed()
    own = in_process(
        {"run": {"node_timeout_seconds": TIMEOUT_SECONDS}}, faults=(break_path("trainer-1", other), slowed)
    ).start()
    broken = "fault: the path is broken"
    wait_until(lambda: own.run.logged(broken, ["trainer-0", "trainer-1", other]), "the path is broken")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert any(
        f"{other}: has not answered trainer-1 for 4 s, although both are alive" in event.what
        for event in report.events
    )
    assert report.examples.returned > 0


@pytest.mark.matrix
def test_without_another_trainer_the_job_ends_and_says_why(in_process: ClusterMaker) -> None:
    # Nobody joins in its place.
    run = {"node_timeout_seconds": TIMEOUT_SECONDS, "rejoin_seconds": 1.0}
    changes = {"run": run, "trainer": {"count": 1}}
    own = in_process(changes, faults=(break_path("trainer-0", "embedding-0"),)).start()
    assert own.wait() == ExitCode.STOPPED_BY_DEATH
    assert "embedding-0: has not answered trainer-0" in own.coordinator.text() + str(own.run.report.events)
