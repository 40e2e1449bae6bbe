"""Nodes that start from checkpoints: all from the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shadowsync.nodes.control.membership import require_same_start
from shadowsync.nodes.control.progress import Origin
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.base import Reply
from shadowsync.tests.support.coordinator.fake_coordinator import ELEMENTS, FakeServer, member
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.real_time import run_in_real_time

TRAINER = {
    "weights_digest": "w",
    "dense_elements": ELEMENTS,
    "needs_center": False,
    "needs_peers": False,
    "model_origin": "replicas",
}


def test_one_digest_or_none() -> None:
    for digests in (["", ""], ["a", "a", ""], []):
        require_same_start(digests, "run")
    with pytest.raises(ClusterError, match="different checkpoints"):
        require_same_start(["a", "", "b"], "run")


def meeting(folder: Path, own: str, trainer: str, shard: str) -> FakeServer:
    """The nodes of a job that have got ready, each with the digest of what it read."""
    nodes = [
        member("trainer", 0, **TRAINER, start_digest=trainer),
        member("embedding", 0, start_digest=shard),
        member("reader", 0),
    ]
    start = {"checkpoint": "run", "resume": True}
    server = FakeServer(folder, nodes, start=start, origin=Origin(digest=own), sync={"algorithm": "none"})
    plan = server.state.placement.plan
    pieces = tuple((piece.table, piece.start, piece.stop) for piece in plan.pieces)
    for node in server.state.members.alive():
        node.get_ready(replace(node.facts, plan_digest=plan.digest, pieces=pieces))
    return server


@pytest.mark.parametrize(
    ("own", "trainer", "shard", "same"),
    [("a", "a", "a", True), ("a", "a", "b", False), ("a", "b", "b", False), ("", "a", "b", False)],
)
@run_by(run_in_real_time)
async def test_nodes_that_read_different_checkpoints_do_not_begin(
    tmp_path: Path, own: str, trainer: str, shard: str, same: bool
) -> None:
    c = meeting(tmp_path, own, trainer, shard)

    def met(*_: object) -> Reply:
        raise ClusterError("met")

    c.reply = met
    outcome = await JobController(c, [], [], lambda: None).run()
    assert outcome.stop is not None
    assert ("different checkpoints" in outcome.stop.text) is not same
    assert bool(c.requested) is same
