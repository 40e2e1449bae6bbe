"""A machine whose wall clock is wrong: its nodes join and train as others do, with wrong dates."""

from __future__ import annotations

from datetime import datetime

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import wrong_clock
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

TEN_MINUTES = 600.0
# Within this of another node's: the whole job takes less.
SECONDS = 300.0


def first_date(run: RunFolder, node: str) -> float:
    """When a node's first line was written, by its own clock."""
    return datetime.fromisoformat(run.log(node)[0]["time"]).timestamp()


@pytest.mark.parametrize("role", ["trainer", "coordinator"])
def test_it_takes_part_as_the_others_do(in_process: ClusterMaker, role: str) -> None:
    """A trainer is behind; to a coordinator that is, everybody else is ahead."""
    off = -TEN_MINUTES
    run = finished(in_process, faults=[wrong_clock(role, off)])
    report = run.report
    assert report.examples.distinct == EXAMPLES
    assert report.events == []
    assert report.wall_seconds < SECONDS
    # The control: it was wrong.
    name = role if role == "coordinator" else f"{role}-0"
    ahead = first_date(run, name) - first_date(run, "reader-0")
    assert abs(ahead - off) < SECONDS
    saved = datetime.fromisoformat(open_checkpoint(run.folder)[1].created_at).timestamp()
    wrong_date = off if role == "coordinator" else 0.0
    assert abs(saved - first_date(run, "reader-0") - wrong_date) < SECONDS
