"""The trainers that waited for the end of the start are admitted together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.control.divergence import CHUNK_ELEMENTS
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.membership.departure import Departures
from shadowsync.nodes.coordinator.membership.scaling import Scaling
from shadowsync.nodes.coordinator.membership.start_admission import StartAdmission
from shadowsync.nodes.coordinator.membership.supervisor_reports import SupervisorReports
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.base import Done, Reply, Request
from shadowsync.pipeline.wire.control.messages import Scale
from shadowsync.pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    ReadReplica,
    ReplicaValues,
    SetGroup,
    WriteReplica,
)
from shadowsync.tests.support.coordinator.fake_coordinator import FakeServer, member
from shadowsync.tests.support.data.batches import batch_id

START = 50_000
Answer = Callable[[FakeServer, Member, Request[Any]], None]


def played(
    folder: Path,
    work: Callable[[FakeServer], Awaitable[None]],
    elements: int = 8,
    answer: Answer | None = None,
    **run: Any,
) -> FakeServer:
    """A server whose job of three trainers is in its start; `answer` raises for an order that fails."""

    async def main() -> FakeServer:
        facts = {"dense_elements": elements, "optimizer_state": (("sum", elements),), "needs_peers": True}
        trainers = [member("trainer", index, **facts) for index in range(3)]
        nodes = [*trainers, member("embedding", 0), member("reader", 0)]
        sync = {"algorithm": "bmuf"}
        server = FakeServer(folder, nodes, embedding={"warmup_iterations": 1}, sync=sync, run=run)

        def reply(node: Member, request: Request[Any]) -> Reply:
            if answer is not None:
                answer(server, node, request)
            if isinstance(request, ReadReplica):
                return ReplicaValues(bytes(4 * (request.stop - request.start)))
            return Done()

        server.reply = reply
        state = server.state
        state.start_members()
        state.group.form((0,))
        state.lifecycle.begin_training({})
        try:
            await work(server)
        finally:
            await server.close()
        return server

    return asyncio.run(main())


def end_start(server: FakeServer) -> None:
    """All examples of the start are trained."""
    server.state.ledger.acknowledge("trainer-0", batch_id(1), START)


async def admit(server: FakeServer) -> None:
    """Admit all that wait, after the start."""
    admitting = asyncio.create_task(StartAdmission(server, asyncio.Lock())._admit_waiting())
    end_start(server)
    await server.notify()
    await admitting
    assert server.state.lone_start.waiting() == []


def orders(server: FakeServer, *kinds: type[Any]) -> list[tuple[str, str]]:
    return [(type(one).__name__, node) for node, one, _ in server.requested if isinstance(one, kinds)]


def test_they_get_one_copy_and_meet_in_one_new_group(tmp_path: Path) -> None:
    server = played(tmp_path, admit)
    read = [one for node, one, _ in server.requested if isinstance(one, ReadReplica) and node == "trainer-0"]
    assert [(one.name, one.stop) for one in read] == [("", 8), ("sum", 8)], "one of each part, for both"
    written = orders(server, WriteReplica)
    assert sorted(written) == [
        ("WriteReplica", name) for name in ("trainer-1", "trainer-2") for _ in range(2)
    ]
    # Before them: else each of them would end a round of the others.
    kinds = [kind for kind, _ in orders(server, SetGroup, Begin)]
    assert kinds == ["SetGroup"] * 3 + ["Begin"] * 2
    views = {one.group.members for _, one, _ in server.requested if isinstance(one, SetGroup)}
    assert views == {(0, 1, 2)}
    ((node, text),) = server.reports
    assert node == "coordinator"
    joined = "2 trainers joined after the start of 50,010 examples"
    assert text == f"{joined}, with the weights and the optimizer of trainer-0"


def test_the_control_in_the_start_nothing_is_asked_of_anybody(tmp_path: Path) -> None:
    async def work(server: FakeServer) -> None:
        StartAdmission(server, asyncio.Lock()).admit_waiting()
        for _ in range(20):
            await server.notify()
            await asyncio.sleep(0)
        assert len(server.state.lone_start.waiting()) == 2

    assert played(tmp_path, work).requested == []


@pytest.mark.parametrize("order", [ConnectPeers, WriteReplica, Begin])
def test_one_that_fails_is_dead_and_the_other_joins(tmp_path: Path, order: type[Any]) -> None:
    def fails(server: FakeServer, node: Member, request: Request[Any]) -> None:
        del server
        if node.info.name == "trainer-1" and isinstance(request, order):
            raise ClusterError("it cannot")

    server = played(tmp_path, admit, answer=fails)
    assert [one.info.name for one in server.state.members.alive("trainer")] == ["trainer-0", "trainer-2"]
    assert server.state.group.view.members == (0, 2)
    assert server.reports[-1][1].startswith("trainer-2 joined after the start of 50,010 examples")


@pytest.mark.parametrize(
    ("elements", "at", "living"),
    [(8, 1, 2), (CHUNK_ELEMENTS + 1, 1, 0), (CHUNK_ELEMENTS + 1, 3, 2)],
    ids=["nothing of it", "a part", "all, and nothing of the optimizer"],
)
def test_who_has_a_part_of_the_weights_of_one_that_died_does_not_train(
    tmp_path: Path, elements: int, at: int, living: int
) -> None:
    reads = 0

    def dies(server: FakeServer, node: Member, request: Request[Any]) -> None:
        nonlocal reads
        if isinstance(request, ReadReplica):
            reads += 1
            # The first chunk is there, unless it has only one.
            if reads > at or elements < CHUNK_ELEMENTS:
                asyncio.run_coroutine_threadsafe(die(server, node), loop[0]).result()
                raise ClusterError("it is dead")

    async def die(server: FakeServer, node: Member) -> None:
        server.mark_dead(node.info.token, "died")

    loop = list[asyncio.AbstractEventLoop]()

    async def work(server: FakeServer) -> None:
        loop.append(asyncio.get_running_loop())
        await admit(server)

    server = played(tmp_path, work, elements, dies)
    trainers = [one for one in server.state.members.alive("trainer") if one.info.name != "trainer-0"]
    assert len(trainers) == living
    if living:
        assert len(orders(server, Begin)) == 2
    else:
        assert ("trainer-1", "got the weights of no other trainer whole") in server.reports


def test_trainers_are_scaled_once_all_of_the_beginning_train(tmp_path: Path) -> None:
    def scaling(server: FakeServer) -> Scaling:
        departures = Departures(server, asyncio.Lock())
        return Scaling(server, departures, SupervisorReports(server, {}))

    async def work(server: FakeServer) -> None:
        with pytest.raises(ClusterError, match="still goes through the start of 50,000 examples alone"):
            await scaling(server).scale(Scale("trainer", 3))
        reply = await scaling(server).scale(Scale("reader", 1))
        assert reply.count == 1, "readers are"
        end_start(server)
        for trainer in server.state.lone_start.waiting():
            trainer.begin()
        reply = await scaling(server).scale(Scale("trainer", 3))
        assert reply.count == 3, "the control"
        # Which batches the shard lacks is known once all trainers have reported their pushes.
        server.state.ledger.owed.lose_shard(0)
        with pytest.raises(ClusterError, match="trainer-2 cannot leave now"):
            await scaling(server).scale(Scale("trainer", 2))

    played(tmp_path, work, start_timeout_seconds=0.1)
