"""Nodes that start from checkpoints: all from the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from shadowsync.nodes.conductor import Conductor
from shadowsync.nodes.coordinator import Coordinator
from shadowsync.nodes.placement import Placement
from shadowsync.nodes.same_start import require_same_start
from shadowsync.nodes.stop import Stop
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.fake_coordinator import ELEMENTS, FakeCoordinator, member

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


class Meeting(FakeCoordinator):
    """The nodes of a job that have got ready, each with the digest of what it read."""

    def __init__(self, folder: Path, own: str, trainer: str, shard: str) -> None:
        members = [
            member("trainer", 0, **TRAINER, start_digest=trainer),
            member("embedding", 0, start_digest=shard),
        ]
        super().__init__(folder, members, start={"checkpoint": "run", "resume": True})
        self.start_digest = own
        self.placement = Placement.by_rows(self.job)
        plan = self.placement.plan
        for node in members:
            node.facts["plan_digest"] = plan.digest
        members[1].facts["pieces"] = [[piece.table, piece.start, piece.stop] for piece in plan.pieces]
        known: Any = self.members
        known.missing, known.started = dict, False

    async def until(self, *_: Any) -> bool:
        """Everyone is there."""
        return True

    def request_stop(self, stop: Stop) -> None:
        """Notes it."""
        self.stop.set_result(stop)


@pytest.mark.parametrize(
    ("own", "trainer", "shard", "same"),
    [("a", "a", "a", True), ("a", "a", "b", False), ("a", "b", "b", False), ("", "a", "b", False)],
)
def test_nodes_that_read_different_checkpoints_do_not_begin(
    tmp_path: Path, own: str, trainer: str, shard: str, same: bool
) -> None:
    async def body() -> None:
        c = Meeting(tmp_path, own, trainer, shard)

        def met(*_: Any) -> dict[str, Any]:
            # It went so far, and nothing more is wanted of it.
            cast(Any, c.members).started = False
            raise ClusterError("met")

        c.answer = met
        outcome = await Conductor(cast(Coordinator, c), [], []).run()
        assert outcome.stop is not None
        assert ("different checkpoints" in outcome.stop.text) is not same
        assert bool(c.asked) is same

    asyncio.run(asyncio.wait_for(body(), 10.0))
