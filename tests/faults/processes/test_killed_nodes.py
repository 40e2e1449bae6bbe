"""A node that the job cannot do without is killed: the job ends within seconds, says what was lost, and
leaves no process behind."""

from __future__ import annotations

from shadowsync.tests.faults.conftest import ENDLESS, FEW_NODES, AnyCluster, AnyClusterMaker
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.processes import is_alive, wait_until
from shadowsync.tests.support.jobs.supervised import Supervise

QUICK: dict[str, object] = {"node_timeout_seconds": 2.0}


def endless(cluster: AnyClusterMaker, changes: dict[str, dict[str, object]]) -> AnyCluster:
    """A job that has begun and goes on until something happens to it."""
    base: dict[str, dict[str, object]] = FEW_NODES | {"data": ENDLESS}
    own = cluster(base | {"run": QUICK} | changes).start()
    own.wait_for_batches(20)
    return own


def test_an_embedding_node(cluster: AnyClusterMaker) -> None:
    _require_an_end_without_its_rows(cluster, {})


def test_an_embedding_node_of_several_threads(in_process: ClusterMaker) -> None:
    """What its threads had under way when it died is no more lost, and no less, than its rows."""
    _require_an_end_without_its_rows(in_process, {"threads": 3, "storage": "bfloat16"})


def _require_an_end_without_its_rows(cluster: AnyClusterMaker, embedding: dict[str, object]) -> None:
    own = endless(cluster, {"embedding": embedding, "run": QUICK | {"rejoin_seconds": 0.5}})
    own.nodes["embedding"][0].kill()
    report = own.ended(6)
    assert "embedding-0 died, and its 52,000 rows are lost" in own.coordinator.text()
    assert "no checkpoint to continue from: start it again" in own.coordinator.text()
    assert report.model_saved is None
    assert any("rows are lost" in event.what for event in report.events)
    assert not (own.run.folder / "checkpoint").exists()
    assert report.examples.read - report.examples.trained == report.examples.in_flight
    assert [one.unknown for one in report.ledger.identities if one.holds is None] == ["it died"]


def test_the_coordinator_that_nobody_replaces(supervise: Supervise) -> None:
    job = supervise({"run": {"restarts": 0}})
    job.wait_for_batches(20)
    trained = job.run.batches()
    job.node("coordinator").kill()
    assert job.process.wait() == 6, job.process.text()
    assert "the coordinator died (killed by SIGKILL); no checkpoint was written" in job.last_line()
    assert str(job.run.folder.resolve()) in job.last_line()
    # The ledger outlives it.
    assert job.run.batches() >= trained


def test_the_supervisor(supervise: Supervise) -> None:
    """Nobody is left to end the others: each notices by itself. The leak check finds any that does not."""
    job = supervise()
    job.wait_for_batches(20)
    children = [
        node for role in ("coordinator", "reader", "trainer", "embedding") for node in job.nodes(role)
    ]
    assert len(children) == 4
    job.process.kill()
    job.process.wait()
    wait_until(lambda: not any(map(is_alive, children)), "all its children end")
    assert job.run.report.outcome == "interrupted"
    assert job.run.report.ledger.adds_up


def test_the_coordinator_that_no_supervisor_watches(cluster: AnyClusterMaker) -> None:
    _require_an_end_without_it(cluster, {}, "6 s")


def test_a_coordinator_is_waited_for_as_long_as_the_job_file_says(in_process: ClusterMaker) -> None:
    _require_an_end_without_it(in_process, {"coordinator_wait_seconds": 4.0}, "4 s")


def _require_an_end_without_it(cluster: AnyClusterMaker, wait: dict[str, float], gone: str) -> None:
    own = cluster({"run": {"node_timeout_seconds": 3.0, **wait}, "data": {"epochs": 10_000}}).start()
    own.wait_for_batches(20)
    own.coordinator.kill()
    for node in own.everyone()[1:]:
        assert node.wait() == 6, node.text()
        assert f"the coordinator was gone for {gone}" in node.text()
