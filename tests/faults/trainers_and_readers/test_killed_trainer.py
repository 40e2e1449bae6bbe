"""A trainer is killed: what it had not confirmed goes to the other, once, and the ledger says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.coordinator.journal import JobJournal
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.wire.control.base import Request
from shadowsync.pipeline.wire.control.messages import TrainedBatches
from shadowsync.tests.faults.conftest import FEW_NODES, AnyCluster, AnyClusterMaker
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed, die
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES, Settings


def busy(own: AnyCluster) -> bool:
    """Whether each of the two trainers has trained some batches."""
    counts = own.run.query("SELECT count(*) FROM batches GROUP BY trainer")
    return len(counts) == 2 and all(count >= 15 for (count,) in counts)


def in_rounds(own: InProcessCluster) -> bool:
    """Whether each has also brought something to the center, as it may not have in its first rounds."""
    nodes = own.status()["nodes"]
    rounds = [node.get("rounds") or 0 for node in nodes if node["role"] == "trainer"]
    return busy(own) and len(rounds) == 2 and min(rounds) > 2


def wounded(
    cluster: Callable[..., Any], changes: Settings | None = None, ready: Callable[[Any], bool] = busy
) -> AnyCluster:
    """A cluster in mid-training, one of whose trainers has been stopped, so that deliveries pile up, and then
    killed; nothing but its silence tells of that."""
    base: Settings = {"run": {"node_timeout_seconds": 3.0}, "trainer": {"credit": 16}}
    slowed = Slowed(40)
    own: AnyCluster = cluster({**base, **(changes or {})}, faults=(slowed,)).start()
    wait_until(lambda: ready(own), "both trainers have trained")
    victim = own.nodes["trainer"][1]
    victim.suspend()
    victim.kill()
    slowed.release()
    return own


@pytest.mark.matrix
def test_the_other_trainer_gets_its_batches(cluster: AnyClusterMaker) -> None:
    own = wounded(cluster)
    report = own.ended(5)
    assert report.outcome == "finished although a node died"
    counted = report.examples
    assert counted.distinct == EXAMPLES
    assert counted.returned > 0
    assert counted.read == counted.trained + counted.returned
    assert counted.in_flight == counted.dropped == 0
    # Each shard changed once for each batch, also for those that the dead trainer had pushed before it died.
    assert report.ledger.shard_applied == {"embedding-0": own.run.batches()}
    ((returned,),) = own.run.query("SELECT sum(examples) FROM returned")
    assert returned == counted.returned
    # What was returned was trained by the other.
    dead = {trainer for (trainer,) in own.run.query("SELECT DISTINCT trainer FROM returned")}
    assert len(dead) == 1
    again = "SELECT DISTINCT b.trainer FROM returned r JOIN batches b USING (epoch, span, number)"
    (living,) = {trainer for (trainer,) in own.run.query(again)}
    assert {living} == {"trainer-0", "trainer-1"} - dead


def test_the_report_says_what_died_with_it(in_process: ClusterMaker) -> None:
    own = wounded(in_process, {"sync": {"algorithm": "none"}})
    report = own.ended(5)
    (event,) = [event for event in report.events if event.node.startswith("trainer")]
    assert event.what == "was silent for 3 s"
    # Without synchronization all dense updates of the dead replica are lost.
    ((trained,),) = own.run.query(f"SELECT count(*) FROM batches WHERE trainer = '{event.node}'")
    assert report.ledger.lost_dense_updates == trained > 0
    assert {node.name: node.exit for node in report.nodes}[event.node] == event.what
    assert own.run.evaluation.model == "the replica (none)"
    assert own.run.evaluation.examples == EVAL_EXAMPLES
    open_checkpoint(own.run.folder, verify=True)


@pytest.mark.matrix
def test_trainers_that_die_while_the_disk_is_slow(in_process: ClusterMaker) -> None:
    """What the coordinator has in memory gets into the ledger's file, though its senders are gone."""
    armed, go_on = threading.Event(), threading.Event()
    waiting: set[str] = set()

    def slow_disk(patch: pytest.MonkeyPatch) -> None:
        commit, apply = LedgerStore.commit, JobJournal.apply

        def slow(self: LedgerStore, *writes: Any) -> None:
            if armed.is_set():
                assert go_on.wait(60.0)
            commit(self, *writes)

        def noted(self: JobJournal, token: str, number: int, request: Request[Any]) -> Any:
            reply, recorded = apply(self, token, number, request)
            if isinstance(request, TrainedBatches):
                # It sends no other before this one is recorded, which may have come before the disk was slow.
                waiting.add(token)
                recorded.add_done_callback(lambda _: waiting.discard(token))
            return reply, recorded

        patch.setattr(LedgerStore, "commit", slow)
        patch.setattr(JobJournal, "apply", noted)

    changes = {"trainer": {"count": 3}}
    own, slowed = slowed_at(40, in_process, changes, faults=(slow_disk,), supervised=True)
    armed.set()
    wait_until(lambda: len(waiting) == 3, "each trainer waits for the ledger")
    slowed.release()
    # At most one of them is being written; what the other has sent waits for its turn.
    for victim in own.nodes["trainer"][:2]:
        victim.kill()
    go_on.set()
    own.ended(5, distinct=EXAMPLES)


@pytest.mark.matrix
def test_synchronized_updates_outlive_their_trainer(in_process: ClusterMaker) -> None:
    """The control of the test above: the center has what rounds brought it."""
    own = wounded(in_process, {"sync": {"duty": 0.2}}, in_rounds)
    report = own.ended(5)
    (event,) = [event for event in report.events if event.node.startswith("trainer")]
    ((trained,),) = own.run.query(f"SELECT count(*) FROM batches WHERE trainer = '{event.node}'")
    assert report.ledger.lost_dense_updates < trained
    assert own.run.evaluation.model == "the center (easgd)"


@pytest.mark.matrix
def test_a_death_that_is_told_at_once(in_process: ClusterMaker) -> None:
    """As by a supervisor, long before the heartbeats would tell."""
    changes = FEW_NODES | {"trainer": {"count": 2}, "data": {"epochs": 2}}
    changes["run"] = {"node_timeout_seconds": 60.0}
    # It has a batch that it will not train.
    own = in_process(changes, supervised=True, faults=(die("trainer", 40),)).start()
    report = own.ended(5, distinct=2 * EXAMPLES)
    (victim,) = (node for node in own.nodes["trainer"] if node.killed)
    assert own.run.logged(f"{victim.name}: died (killed by SIGKILL)")
    assert report.examples.returned > 0
    assert report.ledger.shard_applied == {"embedding-0": own.run.batches()}
    assert "finished although a node died" in own.coordinator.text()
