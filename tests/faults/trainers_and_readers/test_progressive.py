"""A trainer dies in the progressive part: what it had scored is lost, and the report says how much."""

from __future__ import annotations

import pytest
from shadowsync.tests.faults.conftest import FEW_NODES
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

PART = 0.9


@pytest.mark.matrix
def test_the_report_says_how_many_are_scored_of_how_many(in_process: ClusterMaker) -> None:
    slowed = Slowed(60)
    own = in_process(
        FEW_NODES
        | {
            "run": {"node_timeout_seconds": 2.0},
            "data": {"shuffle_window": 0, "split": {"progressive": PART}},
            "trainer": {"count": 2, "batch": 64},
        },
        faults=(slowed,),
    ).start()

    def both_have_scored() -> bool:
        counts = own.run.query("SELECT count(*) FROM batches WHERE span > 0 GROUP BY trainer")
        return len(counts) == 2 and all(count >= 5 for (count,) in counts)

    wait_until(both_have_scored, "both trainers have trained batches of the part")
    own.nodes["trainer"][1].kill()
    slowed.release()
    report = own.ended(5)
    part = present(report.train.progressive)
    assert part.trained == round(EXAMPLES * PART)
    (dead,) = (event.node for event in report.events if event.node.startswith("trainer"))
    # The first span is what comes before the part.
    ((lost,),) = own.run.query(f"SELECT sum(examples) FROM batches WHERE trainer = '{dead}' AND span > 0")
    assert 0 < part.examples == part.trained - lost < part.trained
    text = (own.run.folder / "report.md").read_text(encoding="utf-8")
    assert f"on {part.examples:,} of {part.trained:,} examples of the progressive part" in text
