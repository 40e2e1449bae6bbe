"""Nodes die, come back and lose messages while trainers look up far ahead; rows stay what they can be."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import replace_embedding_nodes
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Slowed, lose_messages
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.tables.seen_rows import SeenRows

DEPTH = 16
CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"epochs": 1, "span_bytes": 1 << 16},
    "trainer": {"count": 1, "lookups_ahead": DEPTH},
    "sync": {"algorithm": "none"},
    "embedding": {"nodes": 2},
}
# Rows of this job are below 1; a push that is added again with each lookup would make them larger soon.
LARGEST = 3.0


def changed(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings, with these: a key at a time."""
    return {name: CHANGES.get(name, {}) | sections.get(name, {}) for name in {**CHANGES, **sections}}


def require_good_rows(seen: SeenRows, own: InProcessCluster, epochs: int = 1) -> None:
    """Rows were made exact and stayed sane, nothing of it is left, and every batch is in every shard."""
    assert seen.added > DEPTH
    assert seen.broken == 0
    assert seen.largest < LARGEST
    assert seen.left == 0
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == epochs * EXAMPLES
    assert len(set(report.ledger.shard_applied.values())) == 1
    # After more, the model knows the examples by heart.
    assert epochs > 1 or own.run.ne < 0.98


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"checkpoint": {"every_examples": 4_000}}, marks=pytest.mark.matrix),
        pytest.param(
            {"trainer": {"count": 2, "workers": 2}, "embedding": {"threads": 2}}, marks=pytest.mark.matrix
        ),
    ],
    ids=["alone", "checkpoints", "workers"],
)
def test_an_embedding_node_is_replaced(in_process: ClusterMaker, more: dict[str, dict[str, Any]]) -> None:
    slowed, seen = Slowed(40), SeenRows()
    own = in_process(changed(**more), faults=(slowed, seen)).start()
    if "checkpoint" in more:
        wait_until(lambda: (own.run.folder / "checkpoint").exists(), "a checkpoint is written")
    own.wait_for_batches(own.run.batches() + 10)
    replace_embedding_nodes(own)
    slowed.release()
    assert own.wait() == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert own.run.report.examples.replayed > 0
    require_good_rows(seen, own)


@pytest.mark.matrix
def test_a_trainer_is_killed(in_process: ClusterMaker) -> None:
    """Its batches come to the other one, also those that some nodes have."""
    slowed, seen = Slowed(40), SeenRows()
    changes = changed(trainer={"count": 2, "workers": 2})
    own = in_process(changes, supervised=True, faults=(slowed, seen)).start()
    own.wait_for_batches(40)
    own.nodes["trainer"][1].kill()
    slowed.release()
    assert own.wait() == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert own.run.report.examples.returned > 0
    # What the dead one had stays as it was.
    assert len(seen.trainers) == 2
    seen.trainers = [rows for rows in seen.trainers if not len(rows)]
    assert seen.trainers
    require_good_rows(seen, own)


def test_messages_are_lost(in_process: ClusterMaker) -> None:
    """They are sent again, out of order, and a push is added only where it lacks."""
    seen = SeenRows()
    own = in_process(changed(), faults=(lose_messages, seen)).start()
    own.ended()
    for kind in ("push", "pushed", "vectors"):
        nodes = ["trainer-0", "embedding-0", "embedding-1"]
        assert own.run.logged(f"fault: a {kind} was lost", nodes), kind
    require_good_rows(seen, own)


@pytest.mark.matrix
def test_another_trainer_joins(in_process: ClusterMaker) -> None:
    slowed, seen = Slowed(40), SeenRows()
    changes = changed(
        data={"epochs": 3}, sync={"algorithm": "easgd", "nodes": 1}, trainer={"count": 2, "workers": 2}
    )
    own = in_process(changes, faults=(slowed, seen)).start()
    own.wait_for_batches(40)
    joined = own.join("trainer")
    wait_until(lambda: joined.poll() is not None or len(seen.trainers) == 3, "it trains")
    slowed.release()
    own.ended()
    require_good_rows(seen, own, epochs=3)
