"""Trainers that say they have trained more than they were given: found by what readers say, never wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.merge_claims import MergeClaims
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.report.merged_work import merged_counts
from shadowsync.pipeline.wire.control.orders import CountDelivered, Delivered
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.real_time import run_in_real_time

NODES = [("trainer", 0), ("trainer", 1), ("reader", 0), ("reader", 1), ("sync", 0)]


class Readers(CoordinatorServer):
    """A coordinator whose readers have delivered so much to each trainer, by reader and token.

    A reader without an entry does not answer. `asked` counts the questions.
    """

    def __init__(self, folder: Path) -> None:
        sync = {"algorithm": "decoupled", "nodes": 1}
        state = state_of(folder, [member(*node) for node in NODES], sync=sync)
        state.start_members()
        state.lifecycle.begin_training({})
        super().__init__(
            NodeSettings(job=state.job), state, LedgerWriter(LedgerStore(folder / "ledger.sqlite"))
        )
        self.delivered: dict[str, dict[str, int]] = {"reader-0": {}, "reader-1": {}}
        self.asked = 0

    async def call_all(self, members: Any, request: Any, seconds: float) -> Any:
        if not isinstance(request, CountDelivered):
            return await super().call_all(members, request, seconds)
        self.asked += 1
        return {
            one.info.name: Delivered(tuple(self.delivered[one.info.name].get(to, 0) for to in request.tokens))
            for one in members
            if one.alive and one.info.name in self.delivered
        }

    async def hear(self, **examples: int) -> list[str]:
        """The events after a sync node's heartbeat, by which so many of each trainer are in merges."""
        counts: dict[str, Any] = {"merges": 9}
        for name, number in examples.items():
            counts |= merged_counts(name.replace("_", "-"), number, 9)
        self.take_counts(self.state.members.require("token-sync-0"), counts)
        await asyncio.sleep(0.01)
        return [f"{node} {what}" for _, node, what in self.state.events]


@asynccontextmanager
async def readers(folder: Path) -> AsyncIterator[Readers]:
    server = Readers(folder)
    try:
        yield server
    finally:
        await server.store.close()


@run_by(run_in_real_time)
async def test_what_is_settled_needs_no_question(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        assert await server.hear(trainer_0=10, trainer_1=0) == []
        assert server.asked == 0


@run_by(run_in_real_time)
async def test_what_readers_have_delivered_may_be_claimed(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        server.delivered = {"reader-0": {"token-trainer-1": 30}, "reader-1": {"token-trainer-1": 12}}
        assert await server.hear(trainer_1=42) == []
        assert server.asked == 1


@run_by(run_in_real_time)
async def test_one_example_more_costs_the_trainer_and_no_other(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        server.delivered = {
            "reader-0": {"token-trainer-1": 30, "token-trainer-0": 90},
            "reader-1": {"token-trainer-1": 12},
        }
        said = await server.hear(trainer_0=90, trainer_1=43)
        assert said == [
            "trainer-1 sent what cannot be: "
            "43 examples behind its part of the merges, and 42 were given to it"
        ]
        assert [one.info.name for one in server.state.members.alive("trainer")] == ["trainer-0"]


@run_by(run_in_real_time)
async def test_nobody_is_judged_while_a_reader_has_not_answered(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        del server.delivered["reader-1"]
        assert await server.hear(trainer_1=43) == []
        server.delivered["reader-1"] = {"token-trainer-1": 43}
        assert await server.hear(trainer_1=43) == []
        assert server.asked == 2


@run_by(run_in_real_time)
async def test_of_a_dead_reader_the_ledger_knows_it_once_its_batches_are_settled(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        server.state.mark_dead("token-reader-0", "died")
        # Its span is not settled: trainer-1 may have trained of it what nobody knows yet.
        assert await server.hear(trainer_1=8) == []
        ledger = server.state.ledger
        ledger.acknowledge("trainer-1", batch_id(1), 8)
        assert await server.hear(trainer_1=9) == []
        assert ledger.read_again("reader-0")
        assert await server.hear(trainer_1=8) == []
        server.delivered["reader-1"] = {"token-trainer-1": 1}
        assert await server.hear(trainer_1=9) == []
        (said,) = await server.hear(trainer_1=10)
        assert "10 examples behind its part of the merges, and 9 were given to it" in said


@pytest.mark.parametrize("sender", ["token-trainer-0", "token-reader-0"])
@run_by(run_in_real_time)
async def test_only_sync_nodes_are_believed(tmp_path: Path, sender: str) -> None:
    async with readers(tmp_path) as server:
        server.take_counts(server.state.members.require(sender), merged_counts("trainer-1", 10**9, 9))
        await asyncio.sleep(0.01)
        assert server.asked == 0
        assert server.state.events == []


@run_by(run_in_real_time)
async def test_one_question_is_asked_at_a_time(tmp_path: Path) -> None:
    async with readers(tmp_path) as server:
        claims = MergeClaims(server, server.state)
        server.delivered["reader-0"] = {"token-trainer-1": 100}
        for _ in range(5):
            claims.heard(merged_counts("trainer-1", 60, 9))
        await asyncio.sleep(0.01)
        assert server.asked == 1
