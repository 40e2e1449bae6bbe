"""A trainer is killed while batches are left out: each is trained or left out once, and the ledger add up."""

from __future__ import annotations

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.unruly_model import NAME

UNRULY = {"name": NAME, "options": {"kind": "rows", "one_in": 2}, "bottom": None, "top": None}


@pytest.mark.matrix
def test_the_other_trainer_leaves_out_what_is_bad_of_it(in_process: ClusterMaker) -> None:
    slowed = Slowed(20)
    own = in_process(
        {
            "run": {"node_timeout_seconds": 3.0},
            "model": UNRULY,
            "trainer": {"credit": 32, "max_bad_batches": 10_000},
        },
        faults=(slowed,),
    ).start()

    def busy() -> bool:
        by_trainer = own.run.query("SELECT count(*) FROM left_out GROUP BY trainer")
        return len(by_trainer) == 2 and all(count >= 5 for (count,) in by_trainer)

    wait_until(busy, "both trainers have left out some")
    victim = own.nodes["trainer"][1]
    victim.suspend()
    victim.kill()
    slowed.release()
    report, run = own.ended(5), own.run
    assert "left out by the trainers = left out in the ledger" in {i.name for i in report.ledger.identities}
    counted = report.examples
    assert counted.returned > 0
    assert counted.distinct + counted.dropped == EXAMPLES
    assert counted.read == counted.trained + counted.dropped + counted.returned
    # Some of what came back is bad, every other one of all that credit allows, and was left out by the other.
    again = "SELECT count(*) FROM returned r JOIN left_out l USING (epoch, span, number)"
    ((bad,),) = run.query(again)
    assert bad > 0
    assert set(report.ledger.shard_applied.values()) == {run.batches()}
    assert present(report.bad_batches).examples == counted.dropped
