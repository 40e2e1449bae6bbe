"""How a job begins when a node cannot connect to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.base import Done, Request
from shadowsync.tests.support.coordinator.fake_coordinator import FakeServer, member


def test_the_reason_of_a_node_that_did_not_connect_is_said(tmp_path: Path) -> None:
    def reply(node: Member, request: Request[Any]) -> Done:  # noqa: ARG001
        if node.info.name == "trainer-0":
            raise ClusterError("the center cannot be reached: sync-0 did not answer")
        return Done()

    async def body() -> None:
        server = FakeServer(tmp_path, [member(role, 0) for role in ("sync", "embedding", "trainer")])
        server.reply = reply
        try:
            await JobController(server, [], [], lambda: None)._connect_peers()
        finally:
            await server.close()

    with pytest.raises(ClusterError, match=r"trainer-0 did not connect to the others: the center cannot be"):
        asyncio.run(body())
