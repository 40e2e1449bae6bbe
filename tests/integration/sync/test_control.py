"""Whole jobs whose gap is set while they train, and what their reports say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.control import sync_controller
from shadowsync.nodes.shadow.schedule import RoundSchedule
from shadowsync.nodes.sync.role import SyncRole
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.adaptation import Control
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.orders import SetSync
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster, finished_run
from shadowsync.tests.support.jobs.processes import wait_until

Clusters = Callable[..., InProcessCluster]

TRAINERS = 2


@pytest.fixture
def set_gaps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The gaps that were set in the schedules of all trainers, in order."""
    found: list[int] = []
    set_gap = RoundSchedule.set_gap

    def noted(self: RoundSchedule, gap: int) -> None:
        found.append(gap)
        set_gap(self, gap)

    monkeypatch.setattr(RoundSchedule, "set_gap", noted)
    # A job of a few seconds is sampled as often as one of hours that trains as many iterations.
    monkeypatch.setattr(sync_controller, "SHORTEST_PAUSE_SECONDS", 0.01)
    return found


def controlled(cluster: Clusters, until: Callable[[dict[str, Any]], bool], **sync: Any) -> Control:
    """What a control did whose job is interrupted as soon as its status says that it has come so far."""
    changes = {"data": {"epochs": 10_000}, "sync": {"duty": 1.0, "control": "auto", **sync}}
    own = cluster(changes).start()
    own.wait_for_batches(1)
    wait_until(lambda: until(own.status()["sync"]), "the control has come so far")
    own.coordinator.interrupt()
    assert own.wait() == ExitCode.INTERRUPTED, own.coordinator.text()
    report = own.report
    assert report.ledger.adds_up
    assert report.sync.control is not None
    reported = [text for text in report.warnings if "sync.control_bound" in text]
    assert len(reported) == (not report.sync.control.kept)
    return report.sync.control


def test_a_wide_bound_is_given_a_larger_gap(cluster: Clusters, set_gaps: list[int]) -> None:
    control = controlled(
        cluster,
        lambda sync: sync["gap_target"] > 2 and len(set_gaps) >= TRAINERS and sync["gap_mean"] is not None,
        control_bound=1000.0,
    )
    assert control.kept
    assert control.first_gap == 1 < 2 < control.gap == control.decisions[-1].gap
    # Both trainers were told, and of nothing else.
    assert set(set_gaps) <= {made.gap for made in control.decisions}
    assert max(map(set_gaps.count, set_gaps)) == TRAINERS


@pytest.mark.matrix
def test_a_bound_out_of_reach_is_told(cluster: Clusters, set_gaps: list[int]) -> None:
    """The control of the test above: the same job, whose bound nothing can meet."""
    control = controlled(
        cluster, lambda sync: sync["gap_target"] < 32 and bool(set_gaps), control_bound=1e-6, gap=32
    )
    assert not control.kept
    assert control.windows_within == 0
    assert control.ratio is not None
    assert control.ratio > 1e-6
    assert control.gap < control.first_gap == 32


def test_the_rate_of_both_ends_is_set(
    cluster: Clusters, set_gaps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[float] = []
    handle = SyncRole.handle

    async def noted(self: SyncRole, request: Request[Any]) -> Reply:
        reply = await handle(self, request)
        if isinstance(request, SetSync):
            assert self._algorithm.options.elastic_rate == request.elastic_rate
            ordered.append(request.elastic_rate)
        return reply

    monkeypatch.setattr(SyncRole, "handle", noted)
    control = controlled(
        cluster,
        lambda sync: sync["elastic_rate"] > 0.1 and any(rate > 0.1 for rate in ordered) and bool(set_gaps),
        control_bound=1e-6,
        options={"elastic_rate": 0.1},
    )
    assert control.first_elastic_rate == 0.1
    assert all(rate in {made.elastic_rate for made in control.decisions} for rate in ordered)
    assert 0.1 < max(ordered) <= 0.5


@pytest.mark.matrix
def test_a_trainer_alone_is_not_controlled(cluster: Clusters, set_gaps: list[int]) -> None:
    changes: dict[str, dict[str, Any]] = {
        "sync": {"duty": 1.0, "control": "auto"},
        "trainer": {"count": 1},
    }
    report = finished_run(cluster, changes).report
    assert report.sync.control is None
    assert set_gaps == []
    (text,) = [text for text in report.warnings if "sync.control" in text]
    assert "a single trainer has no other replica to stay close to" in text
