"""A job that ends, in any way, while a link between two of its nodes is cut: its accounts add up.

What is not known is named as unknown, and the run can be resumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.runtime.node import Node
from shadowsync.pipeline.errors import DataError, ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.jobs.cut_links import COORDINATOR, CutLinks
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.node_faults import Slowed, is_here, resends_soon
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import check_trained_once, folder_of, going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings

pytestmark = pytest.mark.no_kill

# A round over a cut link ends soon, and one on a busy machine does not.
SYNC = {"timeout_seconds": 2.0}
SETTINGS: Settings = {"embedding": {"nodes": 2}}
READ = "read by the readers"
APPLIED = "batches applied by"


def interrupted_without(
    make: ClusterMaker, one: str, other: str, algorithm: str = "easgd", data: Mapping[str, int] = ENDLESS
) -> RunFolder:
    """A run that is interrupted while a link is cut, over which something was lost; its ledger adds up."""
    links, slowed = CutLinks(), Slowed()
    settings = {**SETTINGS, "sync": SYNC | {"algorithm": algorithm}, "data": data}
    own = make(settings, faults=(links, slowed, resends_soon)).start()
    own.wait_for_batches(20)
    links.cut(one, other)
    wait_until(lambda: links.lost(one, other) >= 3, "something is lost over the link")
    own.coordinator.interrupt()
    own.coordinator.wait()
    if other == COORDINATOR:
        # It hears nothing of the end, and would wait for another coordinator.
        own.node(one).kill()
    own.ended(ExitCode.INTERRUPTED)
    slowed.release()
    links.mend(one, other)
    return folder_of(own)


def unknown(report: Report) -> dict[str, str]:
    """Why each identity cannot be checked, by the first words of its name."""
    kinds = READ, APPLIED, "pushes"
    found = {one.name: one.unknown for one in report.ledger.identities if one.unknown}
    return {next(kind for kind in kinds if name.startswith(kind)): why for name, why in found.items()}


@pytest.mark.matrix
def test_a_worker_that_cannot_end_its_pushes(in_process: ClusterMaker) -> None:
    run = interrupted_without(in_process, "trainer-0", "embedding-0", data={"epochs": 1})
    report = run.report
    # The other shard has applied what this one never got.
    applied = report.ledger.shard_applied
    assert applied["embedding-1"] > applied["embedding-0"] >= 20
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
    assert report.examples.read - report.examples.trained == report.examples.in_flight


@pytest.mark.matrix
@pytest.mark.parametrize(("node", "what"), [("trainer-0", READ), ("embedding-1", APPLIED)])
def test_a_node_that_the_coordinator_does_not_hear(in_process: ClusterMaker, node: str, what: str) -> None:
    assert what in unknown(interrupted_without(in_process, node, COORDINATOR).report)


class EndsOnOrder:
    """A fault of `in_process`: the job ends early, or one of its readers fails, when a test says so."""

    def __init__(self) -> None:
        self.early, self.failure = threading.Event(), threading.Event()

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        metrics = Node._metrics

        def failing(own: Node) -> dict[str, object]:
            if self.failure.is_set() and is_here("reader-1"):
                self.failure.clear()
                raise DataError("a file is bad")
            return metrics(own)

        early = property(lambda _: "enough is trained" if self.early.is_set() else "")
        patch.setattr(JobController, "_ended_early", early)
        patch.setattr(Node, "_metrics", failing)


def _in_a_checkpoint(own: InProcessCluster, order: EndsOnOrder) -> None:
    del order
    wait_until(lambda: bool(own.run.partial_checkpoint()), "a checkpoint is being written")
    own.coordinator.interrupt()


ENDS: dict[str, Callable[[InProcessCluster, EndsOnOrder], None]] = {
    "failure": lambda _, order: order.failure.set(),
    "early": lambda _, order: order.early.set(),
    "checkpoint": _in_a_checkpoint,
    # By itself, once training is not slowed any more.
    "last": lambda *_: None,
}
CHANGES: Settings = {
    "run": {"node_timeout_seconds": 5.0, "rejoin_seconds": 5.0},
    "embedding": {"nodes": 2},
    "data": {"readers": 2, "span_bytes": 1 << 16},
    "checkpoint": {"every_examples": 1_000},
    "sync": SYNC,
}
LINKS = [
    ("trainer-0", "embedding-0"),
    ("trainer-0", "reader-0"),
    ("trainer-0", "sync-0"),
    ("trainer-1", "sync-0"),
    ("trainer-0", COORDINATOR),
    ("reader-0", COORDINATOR),
    ("sync-0", COORDINATOR),
    ("embedding-1", COORDINATOR),
]
# A job that fails ends in the same hurry as one that is interrupted, and is so without those links that a
# checkpoint does not need.
NO_CHECKPOINT_NEEDS = [*LINKS[:2], ("trainer-1", "sync-0"), ("reader-0", COORDINATOR)]
CUT_ENDS = [
    pytest.param(end, one, other, marks=() if (end, one) == ("early", "trainer-1") else pytest.mark.matrix)
    for end in ENDS
    for one, other in LINKS
    if end in ("early", "last") or ((one, other) in NO_CHECKPOINT_NEEDS) == (end == "failure")
]


@pytest.mark.parametrize(("end", "one", "other"), CUT_ENDS)
def test_any_end(in_process: ClusterMaker, end: str, one: str, other: str) -> None:
    links, slowed, order = CutLinks(), Slowed(), EndsOnOrder()
    settings = {**CHANGES, "data": {**CHANGES["data"], "epochs": 1 if end == "last" else 10_000}}
    own = in_process(settings, faults=(links, slowed, order)).start()
    own.wait_for_batches(20)
    links.cut(one, other)
    wait_until(lambda: links.lost(one, other) >= 3, "something is lost over the link")
    ENDS[end](own, order)
    if end == "last":
        slowed.release()
    code = ExitCode(own.wait())
    slowed.release()
    links.mend(one, other)
    order.early.clear()
    report, text = own.ended(code), own.coordinator.text()
    assert report.exit_code == code
    assert report.examples.trained == report.examples.distinct + report.examples.replayed
    if report.examples.in_flight is None:
        assert READ in unknown(report)
    if (one, other) in {("trainer-0", "sync-0"), ("trainer-1", "sync-0")}:
        # Another trainer can read the center, and score it.
        assert report.model_saved == "the center (easgd)", report.events
        assert code in (ExitCode.OK, ExitCode.DATA, ExitCode.INTERRUPTED), text
        assert (report.eval is not None) == (code == ExitCode.OK)
    if end == "early" and "embedding-1" not in (one, other):
        # The input was not to be read to its end, so a reader that is gone stops nothing.
        assert code in (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS), text
    if "`shadowsync resume " in text:
        # More than had been begun by then, on a machine of any speed.
        epochs = 2 + report.examples.distinct // EXAMPLES
        whole = {**settings, "data": {**CHANGES["data"], "epochs": epochs}}
        rest = finished(in_process, going_on(whole, folder_of(own)))
        assert rest.report.restored_examples + rest.report.examples.distinct == epochs * EXAMPLES
