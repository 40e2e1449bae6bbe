"""A node is told to end while the job trains: it hands back what it has, and the job goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.membership.departure import Departures
from shadowsync.nodes.embedding.role import EmbeddingRole
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.wire.control.orders import Begin
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import is_alive, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

pytestmark = pytest.mark.no_kill

SECONDS = 120.0
LEFT = "left the job as requested"
CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 5.0},
    "data": {"span_bytes": 1 << 16, "readers": 2},
}


def _ended_whole(own: InProcessCluster, left: str) -> Report:
    """Waits for the end: everything is trained once, nobody died, and no identity is unknown."""
    report = own.ended_whole(ExitCode.OK, distinct=EXAMPLES)
    assert report.examples.trained == EXAMPLES
    assert (left, LEFT) in [(event.node, event.what) for event in report.events]
    said = [event.what for event in report.events if event.node == left]
    assert not any("died" in what or "silent" in what or "rejoined" in what for what in said), said
    assert not any("died" in event.what for event in report.events), report.events
    return report


@pytest.mark.parametrize(
    "algorithm",
    [
        "easgd",
        "decoupled",
        pytest.param("ma", marks=pytest.mark.matrix),
        pytest.param("none", marks=pytest.mark.matrix),
    ],
)
def test_a_trainer_leaves(in_process: ClusterMaker, algorithm: str) -> None:
    changes = {"sync": {"algorithm": algorithm}, "trainer": {"count": 3}}
    slowed = Slowed(30)
    own = in_process(CHANGES | changes, faults=(slowed,)).start()
    of_it = "SELECT count(*) FROM batches WHERE trainer = 'trainer-1'"
    own.wait_for_batches(5)
    wait_until(lambda: own.run.query(of_it)[0][0] >= 5, "it has trained")
    own.node("trainer-1").terminate()
    assert own.node("trainer-1").wait() == ExitCode.OK, own.node("trainer-1").text()
    slowed.release()
    trained = own.run.query(of_it)[0][0]
    _ended_whole(own, "trainer-1")
    # It trains nothing more, and what it had trained counts.
    assert own.run.query(of_it) == [(trained,)]
    assert trained > 0
    if algorithm in ("easgd", "decoupled"):
        assert own.run.report.ledger.lost_dense_updates == 0, "its last round took them all to the center"
        events = [event.what for event in own.run.report.events]
        assert not any("then died" in what for what in events), "it left"
    if (merges := own.run.report.sync.merges) is not None:
        assert sum(one.examples for one in merges.trainers.values()) == EXAMPLES
        assert merges.trainers["trainer-1"].unmerged_examples == 0


@pytest.mark.parametrize("name", ["trainer-1", "reader-1"])
def test_it_leaves_as_the_job_begins(in_process: ClusterMaker, name: str) -> None:
    """Trainers train already, but not all nodes have begun."""
    begins, may_begin, asked = threading.Event(), threading.Event(), threading.Event()

    def late(patch: pytest.MonkeyPatch) -> None:
        handle, request = EmbeddingRole.handle, Departures.request

        async def begins_late(self: EmbeddingRole, message: Any) -> Any:
            if isinstance(message, Begin):
                begins.set()
                await asyncio.to_thread(may_begin.wait, SECONDS)
            return await handle(self, message)

        def requested(self: Departures, member: Member) -> None:
            request(self, member)
            asked.set()

        patch.setattr(EmbeddingRole, "handle", begins_late)
        patch.setattr(Departures, "request", requested)

    slowed = Slowed(1)
    own = in_process(CHANGES | {"trainer": {"count": 2}}, faults=(late, slowed)).start()
    assert begins.wait(SECONDS)
    own.node(name).terminate()
    assert asked.wait(SECONDS)
    assert own.coordinator.poll() is None
    may_begin.set()
    assert own.node(name).wait() == ExitCode.OK, own.node(name).text()
    slowed.release()
    _ended_whole(own, name)


@pytest.mark.matrix
def test_a_reader_leaves(in_process: ClusterMaker) -> None:
    own, slowed = slowed_at(30, in_process, CHANGES)
    own.node("reader-0").terminate()
    assert own.node("reader-0").wait() == ExitCode.OK, own.node("reader-0").text()
    slowed.release()
    _ended_whole(own, "reader-0")


@pytest.mark.matrix
def test_a_reader_and_a_trainer_leave_at_once(in_process: ClusterMaker) -> None:
    """What the one had sent to the other, and is not trained, counts for neither."""
    own, slowed = slowed_at(30, in_process, CHANGES | {"trainer": {"count": 3}})
    leaving = own.node("reader-0"), own.node("trainer-1")
    for node in leaving:
        node.terminate()
    assert [node.wait() for node in leaving] == [ExitCode.OK, ExitCode.OK]
    slowed.release()
    _ended_whole(own, "reader-0")


@pytest.mark.parametrize("name", ["embedding-0", "reader-0"])
def test_without_it_the_job_cannot_go_on(in_process: ClusterMaker, name: str) -> None:
    """It is interrupted, with a checkpoint."""
    own = in_process({"data": {"epochs": 10_000, "readers": 1}}).start()
    own.wait_for_batches(30)
    own.node(name).terminate()
    report = own.ended(ExitCode.INTERRUPTED)
    assert report.model_saved is not None
    assert (own.run.folder / "checkpoint").exists()


@pytest.mark.parametrize("first", ["trainer-1", pytest.param("coordinator", marks=pytest.mark.matrix)])
def test_the_job_is_interrupted_while_a_node_leaves(in_process: ClusterMaker, first: str) -> None:
    """As `docker compose stop` does, which sends SIGTERM to all nodes: every sum still adds up."""
    own = in_process({"data": {"epochs": 10_000}, "trainer": {"count": 3}}).start()
    own.wait_for_batches(30)
    nodes = [own.node("trainer-1"), own.coordinator]
    for node in nodes if first == "trainer-1" else nodes[::-1]:
        node.terminate()
    report = own.ended(ExitCode.INTERRUPTED)
    counts = report.examples
    assert counts.read - counts.trained - counts.returned == counts.in_flight
    assert report.model_saved is not None


def test_the_supervisor_starts_no_other(supervise: Supervise) -> None:
    job = supervise({"trainer": {"count": 2}, "sync": {"algorithm": "easgd"}})
    job.wait_for_batches(30)
    first, second = job.nodes("trainer")
    first.terminate()
    wait_until(lambda: job.run.logged(LEFT), "it leaves")
    trained = job.run.batches()
    job.wait_for_batches(trained + 20)
    wait_until(lambda: not is_alive(first), "its process ends")
    assert [node.pid for node in job.nodes("trainer")] == [second.pid]
    job.interrupted()
