"""A trainer whose messages take long: the others train on, and events, status and report say who it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from shadowsync.nodes.control import late_trainers
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.shadow.zmq_peers import ZmqPeers
from shadowsync.pipeline.report import lateness
from shadowsync.sync_algos.base import Group, Slice
from shadowsync.sync_algos.contract.grouping import Grouping, everyone
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import is_here
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.watch.status import read_status

LATE = "trainer-1"
DELAY_SECONDS = 0.5
WINDOW_SECONDS = 3.0


def slow_messages(patch: pytest.MonkeyPatch) -> None:
    """What LATE sends to the center or to the other trainers comes later by DELAY_SECONDS."""
    exchange, meet = CenterClient.exchange, ZmqPeers.meet

    async def late_exchange(
        self: CenterClient, part: Slice, values: torch.Tensor, examples: int | None = None
    ) -> torch.Tensor:
        if is_here(LATE):
            await asyncio.sleep(DELAY_SECONDS)
        return await exchange(self, part, values, examples)

    async def late_meeting(self: ZmqPeers, grouping: Grouping = everyone) -> Group:
        if is_here(LATE):
            await asyncio.sleep(DELAY_SECONDS)
        return await meet(self, grouping)

    patch.setattr(CenterClient, "exchange", late_exchange)
    patch.setattr(ZmqPeers, "meet", late_meeting)


def soon(patch: pytest.MonkeyPatch) -> None:
    """No fault, but a trainer that is late for a shorter time is named."""
    patch.setattr(late_trainers, "LONG_SECONDS", WINDOW_SECONDS)
    # The report's time begins with the first batch.
    patch.setattr(lateness, "LONG_SECONDS", WINDOW_SECONDS / 4)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [("decoupled", "its work reaches the model late: it was in "), ("bmuf", "rounds waited for it for ")],
)
def test_it_is_named_while_the_job_trains(in_process: ClusterMaker, algorithm: str, words: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "data": ENDLESS,
        "trainer": {"count": 3},
        "sync": {"algorithm": algorithm, "nodes": 1 if algorithm == "decoupled" else 0},
    }
    own = in_process(changes, faults=(slow_messages, soon)).start()
    wait_until(lambda: own.run.logged(f"{LATE}: {words}"), "it is named")
    nodes = {node.name: node for node in read_status(own.status()).nodes}
    report = own.interrupted()
    others = [name for name in nodes if name.startswith("trainer-") and name != LATE]
    late = present(nodes[LATE].late)
    assert all(late > (nodes[name].late or 0.0) for name in others)
    named = [event for event in report.events if event.what.endswith(lateness.LOOK)]
    assert [event.node for event in named] == [LATE]
    assert any(warning.startswith(f"{LATE}: {words}") for warning in report.warnings)
    if (merges := report.sync.merges) is None:
        waited = report.sync.waited_seconds
        assert all(waited[LATE] > waited.get(name, 0.0) for name in others)
        return
    shares = {name: one.share for name, one in merges.trainers.items()}
    assert all((shares[LATE] or 0.0) < (shares[name] or 0.0) for name in others)
    assert merges.trainers[LATE].most_late_seconds >= DELAY_SECONDS / 2
