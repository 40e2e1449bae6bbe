"""One message too few or too many, made on purpose: the ledger must not add up, and the run must say so."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.ledger import Identity
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.node_faults import Fault, discard, double, lose_messages, miscount
from shadowsync.tests.support.jobs.runs import EXAMPLES

BATCH = 128
READ = "read by the readers = trained + returned + in flight"
KNOWN = "pushes received twice ≤ sent again + returned"


def broken(report: Report) -> dict[str, Identity]:
    """The identities that do not hold, by name."""
    return {identity.name: identity for identity in report.ledger.identities if identity.holds is False}


@pytest.fixture
def faulty_run(in_process: ClusterMaker) -> ClusterMaker:
    """Runs the small job with a fault to its end."""

    def run(fault: Fault) -> InProcessCluster:
        own = in_process(faults=(fault,)).start()
        own.wait()
        assert own.run.logged("fault: ", ["reader-0", "trainer-0", "trainer-1"]), "the fault did not happen"
        return own

    return run


def fault_happened(own: InProcessCluster, text: str) -> bool:
    """Whether one of the trainers says so (the faulty one may have joined as either)."""
    return own.run.logged(text, ["trainer-0", "trainer-1"])


def test_an_unharmed_run_is_green(in_process: ClusterMaker) -> None:
    report = finished(in_process).report
    assert not broken(report)


def test_a_batch_discarded_by_a_trainer(faulty_run: ClusterMaker) -> None:
    own = faulty_run(discard)
    assert fault_happened(own, "a batch was discarded")
    assert own.coordinator.code == 7, own.coordinator.text()
    assert "batches delivered, but neither trained nor in flight: 1;" in own.coordinator.text()
    report = own.run.report
    assert not report.ledger.adds_up
    assert report.exit_code == 7
    counted = report.examples
    assert counted.read == EXAMPLES
    assert EXAMPLES - BATCH <= counted.trained < EXAMPLES
    assert set(broken(report)) == {READ}
    assert own.run.batches() * BATCH < EXAMPLES + 2 * BATCH


def test_a_batch_trained_twice_and_acknowledged_once(faulty_run: ClusterMaker) -> None:
    own = faulty_run(double)
    assert fault_happened(own, "a batch was trained twice")
    assert own.coordinator.code == 7, own.coordinator.text()
    report = own.run.report
    counted = report.examples
    assert counted.trained == counted.distinct == EXAMPLES
    assert set(broken(report)) == {KNOWN}
    assert "contradict" not in own.coordinator.text()
    # The shard recognised the second push: its rows changed once.
    assert report.ledger.shard_applied["embedding-0"] == own.run.batches()
    ((repeated,),) = own.run.query("SELECT repeated FROM shards")
    assert repeated == 1


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_delivery_that_a_reader_did_not_count(faulty_run: ClusterMaker) -> None:
    own = faulty_run(miscount)
    assert own.coordinator.code == 7, own.coordinator.text()
    assert "ledger does not add up" in own.coordinator.text()
    assert "the counts of reader-0 contradict those of the others" in own.coordinator.text()
    report = own.run.report
    assert report.examples.trained == EXAMPLES
    assert EXAMPLES - BATCH <= report.examples.read < EXAMPLES
    assert set(broken(report)) == {READ}
    for process in own.everyone():
        assert process.code == 7


@pytest.mark.matrix
@pytest.mark.no_kill
def test_messages_lost_on_their_way_are_sent_again(in_process: ClusterMaker) -> None:
    run = finished(in_process, faults=(lose_messages,))
    nodes = ["trainer-0", "trainer-1", "reader-0", "embedding-0"]
    lost = ("push", "credit", "delivery", "pushed", "vectors", "attach", "attached")
    for kind in (*lost, "report of trained batches"):
        assert run.logged(f"a {kind} was lost", nodes), kind
    report = run.report
    assert not broken(report)
    assert report.examples.trained == EXAMPLES
    assert report.examples.replayed == 0
    assert report.ledger.shard_applied["embedding-0"] == run.batches()
    # A lost answer to a push makes the worker push again, and the shard must know it.
    ((repeated,),) = run.query("SELECT repeated FROM shards")
    assert repeated >= 1
