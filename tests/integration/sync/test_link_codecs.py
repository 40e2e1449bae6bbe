"""Whole jobs whose links to sync nodes have their codecs chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.shadow.codec_chooser import LinkCodecChooser
from shadowsync.nodes.shadow.schedule import RoundSchedule
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
from shadowsync.tests.support.jobs.processes import wait_until

AUTO = {"center_up": "auto", "center_down": "auto"}
Counts = dict[str, int]


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[Counts]:
    """The exchanges of each link by codec, as they are counted."""
    found: list[Counts] = []
    made = LinkCodecChooser.__init__

    def noted(self: LinkCodecChooser, *given: Any) -> None:
        made(self, *given)
        found.append(self.exchanges)

    monkeypatch.setattr(LinkCodecChooser, "__init__", noted)
    return found


def lossy(link: Counts) -> int:
    return link["bfloat16"] + link["int8"]


def trained(
    cluster: Callable[..., InProcessCluster],
    monkeypatch: pytest.MonkeyPatch,
    wanted_seconds: float,
    until: Callable[[], bool],
) -> Report:
    """A job that wants its rounds so often, as no machine or every machine can; interrupted then."""
    monkeypatch.setattr(RoundSchedule, "wanted_seconds", property(lambda _: wanted_seconds))
    changes: dict[str, dict[str, Any]] = {
        "data": {"epochs": 10_000},
        "sync": {"duty": 1.0, "gap": 1},
        "codecs": AUTO,
    }
    own = cluster(changes).start()
    own.wait_for_batches(1)
    wait_until(until, "every link had its exchanges")
    own.coordinator.interrupt()
    assert own.wait() == ExitCode.INTERRUPTED, own.coordinator.text()
    return own.report


def test_links_that_are_too_slow_get_a_smaller_codec(
    cluster: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch, links: list[Counts]
) -> None:
    report = trained(
        cluster, monkeypatch, 1e-9, lambda: len(links) == 2 and all(lossy(link) >= 5 for link in links)
    )
    assert report.ledger.adds_up
    assert len(report.sync.link_codecs) == 2
    for link in report.sync.link_codecs:
        assert link.exchanges["float32"] >= 3
        assert sum(link.exchanges.values()) >= link.exchanges["float32"] + 5
        assert not link.fits
        assert link.bytes_per_second
    assert any("was too slow: an exchange" in text for text in report.warnings)
    assert report.sync.links["center_up"].codec == "auto"
    assert not any(node.refused_messages for node in report.nodes)


def test_links_that_are_fast_stay_lossless(
    cluster: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch, links: list[Counts]
) -> None:
    """The control of the test above."""
    report = trained(
        cluster, monkeypatch, 1e9, lambda: len(links) == 2 and all(sum(link.values()) >= 10 for link in links)
    )
    assert report.ledger.adds_up
    assert [set(link.exchanges) for link in report.sync.link_codecs] == [{"float32"}] * 2
    assert all(link.fits for link in report.sync.link_codecs)
    assert not any("was too slow: an exchange" in text for text in report.warnings)
    assert (report.sync.links["center_up"].compression or 2) < 1.0
    assert report.sync.reference_bytes == {}
