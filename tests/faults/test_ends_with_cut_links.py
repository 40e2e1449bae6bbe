"""A job that is interrupted while a link between two of its nodes is cut: its accounts add up.

What is not known is named as unknown, and the run can be resumed.
"""

from __future__ import annotations

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.support.cut_links import COORDINATOR, CutLinks
from shadowsync.tests.support.node_faults import Slowed
from shadowsync.tests.support.processes import wait_until
from shadowsync.tests.support.resumed import (
    ClusterMaker,
    check_trained_once,
    finished,
    folder_of,
    going_on,
)
from shadowsync.tests.support.runs import EXAMPLES, RunFolder, Settings

pytestmark = pytest.mark.no_kill

SETTINGS: Settings = {"embedding": {"nodes": 2}}
READ = "read by the readers"
APPLIED = "batches applied by"


def interrupted_without(
    make: ClusterMaker, one: str, other: str, algorithm: str = "easgd", loses: int = 3
) -> RunFolder:
    """A run that is interrupted while a link is cut, over which something was lost."""
    links, slowed = CutLinks(), Slowed()
    own = make({**SETTINGS, "sync": {"algorithm": algorithm}}, faults=(links, slowed)).start()
    own.wait_for_batches(20)
    links.cut(one, other)
    wait_until(lambda: links.lost(one, other) >= loses, "something is lost over the link")
    own.coordinator.interrupt()
    assert own.wait(60.0) == ExitCode.INTERRUPTED, own.coordinator.text()
    slowed.release()
    links.mend(one, other)
    return folder_of(own)


def unknown(report: Report) -> dict[str, str]:
    """Why each identity cannot be checked, by the first words of its name."""
    kinds = READ, APPLIED, "pushes"
    found = {one.name: one.unknown for one in report.ledger.identities if one.unknown}
    return {next(kind for kind in kinds if name.startswith(kind)): why for name, why in found.items()}


def test_a_worker_that_cannot_end_its_pushes(in_process: ClusterMaker) -> None:
    run = interrupted_without(in_process, "trainer-0", "embedding-0")
    report = run.report
    # The other shard has applied what this one never got.
    applied = report.ledger.shard_applied
    assert applied["embedding-1"] > applied["embedding-0"] >= 20
    assert report.ledger.adds_up, report.ledger.identities
    assert unknown(report)[READ].startswith("trainer-0 had a worker that did not stop in time")
    assert APPLIED in unknown(report)
    assert report.examples.in_flight is None
    assert report.examples.read > report.examples.trained == report.examples.distinct
    text = (run.folder / "report.md").read_text(encoding="utf-8")
    assert "| in flight at the end | unknown |" in text
    rest = finished(in_process, going_on(SETTINGS, run))
    check_trained_once([run, rest], 1, EXAMPLES)


@pytest.mark.parametrize(
    ("one", "other", "algorithm"),
    [
        # Its counts come again with its closing round, and the reader goes on sending.
        ("reader-0", COORDINATOR, "bmuf"),
        pytest.param("reader-0", COORDINATOR, "easgd", marks=pytest.mark.matrix),
        pytest.param("trainer-0", "reader-0", "easgd", marks=pytest.mark.matrix),
        pytest.param("trainer-0", "sync-0", "easgd", marks=pytest.mark.matrix),
    ],
)
def test_what_is_known_is_checked(in_process: ClusterMaker, one: str, other: str, algorithm: str) -> None:
    report = interrupted_without(in_process, one, other, algorithm).report
    assert not unknown(report)
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.read - report.examples.trained == report.examples.in_flight


@pytest.mark.matrix
@pytest.mark.parametrize(("node", "what"), [("trainer-0", READ), ("embedding-1", APPLIED)])
def test_a_node_that_the_coordinator_does_not_hear(in_process: ClusterMaker, node: str, what: str) -> None:
    report = interrupted_without(in_process, node, COORDINATOR).report
    assert report.ledger.adds_up, report.ledger.identities
    assert what in unknown(report)
