"""A trainer's link to the center, with the sync nodes' own threads over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.sync.role import CenterService
from shadowsync.pipeline.wire.center_messages import CenterRead
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.messages import Failure, Lookup
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.sync_algos.base import PeerLost
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.real_time import run_in_real_time
from shadowsync.tests.support.sync.center_messages import exchange_of
from shadowsync.tests.support.sync.peer_transports import vector
from shadowsync.tests.support.tables.service_counts import counts

Context = zmq.Context[zmq.Socket[bytes]]
Start = Callable[[int, float], list[tuple[CenterService, MemberInfo]]]
ENOUGH_SECONDS = 60.0


@asynccontextmanager
async def linked(
    context: Context,
    members: Sequence[MemberInfo],
    numel: int,
    identity: str = "a/shadow",
    chunk_elements: int = 16,
) -> AsyncIterator[CenterClient]:
    link = CenterClient(
        context, members, numel, identity, chunk_bytes=4 * chunk_elements, timeout_seconds=ENOUGH_SECONDS
    )
    try:
        yield link
    finally:
        link.close()


async def exchange_all(link: CenterClient, flat: torch.Tensor) -> torch.Tensor:
    """All slices at once, as a round does; gives the deltas as one tensor."""
    parts = link.slices
    deltas = await asyncio.gather(*(link.exchange(p, flat[p.start : p.stop].clone()) for p in parts))
    return torch.cat(list(deltas))


@settings(max_examples=25)
@given(
    st.integers(1, 120),
    st.integers(1, 4),
    st.integers(1, 50),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(1, 3),
)
@run_by(run_in_real_time)
async def test_exchanges_are_the_closed_form_whatever_the_chunks_and_slices(
    context: Context, sync_nodes: Start, numel: int, nodes: int, chunk: int, alpha: float, rounds: int
) -> None:
    members = [member for _, member in sync_nodes(nodes, alpha)]

    async with linked(context, members, numel, chunk_elements=chunk) as link:
        first = vector(numel, 0)
        await link.seed(first)
        torch.testing.assert_close(await link.read_all(), first, rtol=0, atol=0)
        center: NDArray[np.float64] = first.double().numpy()
        for number in range(1, rounds + 1):
            sent = vector(numel, number)
            delta = await exchange_all(link, sent)
            step = alpha * (sent.double().numpy() - center)
            np.testing.assert_allclose(delta.numpy(), step, rtol=1e-5, atol=1e-6)
            center = center + step
        np.testing.assert_allclose((await link.read_all()).numpy(), center, rtol=1e-5, atol=1e-6)


def test_slices_are_spread_over_the_nodes_and_none_is_asked_for_nothing(
    context: Context, sync_nodes: Start
) -> None:
    nodes = sync_nodes(4, 0.5)

    async def main() -> None:
        async with linked(context, [member for _, member in nodes], 3) as link:
            assert [(part.start, part.stop) for part in link.slices] == [(0, 1), (1, 2), (2, 3)]
            await link.seed(vector(3, 0))
            await exchange_all(link, vector(3, 1))

    run_in_real_time(main())
    applied = [counts(service)["applied_slices"] for service, _ in nodes]
    assert applied == [1, 1, 1, 0]


def test_two_trainers_change_one_center_each_once_a_round(context: Context, sync_nodes: Start) -> None:
    nodes, numel, rounds = sync_nodes(2, 0.5), 100, 20

    async def trainer(link: CenterClient, value: float) -> None:
        for _ in range(rounds):
            await exchange_all(link, torch.full((numel,), value))

    async def main() -> None:
        members = [member for _, member in nodes]
        async with (
            linked(context, members, numel, "a/shadow") as one,
            linked(context, members, numel, "b/shadow") as other,
        ):
            await one.seed(torch.zeros(numel))
            # A second trainer's first value comes too late to count.
            await other.seed(torch.full((numel,), 99.0))
            await asyncio.gather(trainer(one, 1.0), trainer(other, -1.0))
            center = await one.read_all()
            assert torch.isfinite(center).all()
            # Each element is ±1/2 of the last client's step from where the others left it: within (-1, 1).
            assert center.abs().max() < 1.0
            # A slice is applied whole: within one there is one value.
            for part in one.slices:
                assert len(set(center[part.start : part.stop].tolist())) == 1

    run_in_real_time(main())
    assert [counts(service)["applied_slices"] for service, _ in nodes] == [2 * rounds, 2 * rounds]


@run_by(run_in_real_time)
async def test_bytes_are_counted_both_ways(context: Context, sync_nodes: Start) -> None:
    ((service, member),) = sync_nodes(1, 0.5)
    async with linked(context, [member], 1000) as link:
        await link.seed(vector(1000, 0))
        seeded = link.sent_bytes
        assert 4000 < seeded < 12_000
        await exchange_all(link, vector(1000, 1))
        assert link.sent_bytes > seeded + 4000
        assert link.received_bytes > 4000
        metrics = await asyncio.to_thread(counts, service)
        assert metrics["received_bytes"] == link.sent_bytes
        assert metrics["sent_bytes"] == link.received_bytes


@run_by(run_in_real_time)
async def test_what_was_handed_over_may_change_afterwards(context: Context, sync_nodes: Start) -> None:
    members = [member for _, member in sync_nodes(1, 0.5)]
    async with linked(context, members, 200_000, chunk_elements=100_000) as link:
        flat = vector(200_000, 0)
        first = flat.clone()
        seeding = asyncio.ensure_future(link.seed(flat))
        # Workers write the replica as soon as the seeding has begun.
        await asyncio.sleep(0)
        flat.fill_(float("nan"))
        await seeding
        torch.testing.assert_close(await link.read_all(), first, rtol=0, atol=0)


@run_by(run_in_real_time)
async def test_an_answer_that_is_kept_does_not_change(context: Context, sync_nodes: Start) -> None:
    """Its memory is used again, but only when nobody has it any more."""
    members = [member for _, member in sync_nodes(1, 0.5)]
    async with linked(context, members, 1000) as link:
        await link.seed(torch.zeros(1000))
        (part,) = link.slices
        kept = await link.exchange(part, torch.ones(1000))
        view, place = kept[10:20], kept.data_ptr()
        for _ in range(3):
            await link.exchange(part, torch.full((1000,), 9.0))
        assert kept.tolist() == [0.5] * 1000
        del kept
        assert (await link.exchange(part, torch.ones(1000))).data_ptr() != place
        assert view.tolist() == [0.5] * 10
        del view
        used_again = {(await link.exchange(part, torch.ones(1000))).data_ptr() for _ in range(5)}
        assert len(used_again) == 1


@run_by(run_in_real_time)
async def test_a_part_can_be_read_while_another_is_exchanged(context: Context, sync_nodes: Start) -> None:
    members = [member for _, member in sync_nodes(2, 1.0)]
    async with linked(context, members, 40, chunk_elements=3) as link:
        await link.seed(torch.zeros(40))
        one, other = link.slices
        delta, read = await asyncio.gather(link.exchange(one, torch.ones(20)), link.read(other))
        assert delta.tolist() == [1.0] * 20
        assert read.tolist() == [0.0] * 20
        assert (await link.read(one)).tolist() == [1.0] * 20


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (exchange_of(7, 90, np.zeros(20, np.float32)), "are outside the slice 0 to 100"),
        (CenterRead(7, 50, 101), "elements 50 to 101 are outside 0 to 100"),
        (Lookup(7, np.zeros(1, np.int32)), "a sync node does not accept a lookup"),
    ],
)
@run_by(run_in_real_time)
async def test_what_cannot_be_done_is_answered_and_the_service_goes_on(
    context: Context, sync_nodes: Start, message: Message, why: str
) -> None:
    ((service, member),) = sync_nodes(1, 0.5)

    async with linked(context, [member], 100) as link:
        first = vector(100, 0)
        await link.seed(first)
        stranger = Connection(context, member.endpoint, "x/shadow")
        try:
            stranger.send(message)
            assert await asyncio.to_thread(stranger.socket.poll, 60_000)
            reply = stranger.receive()
            assert isinstance(reply, Failure)
            assert reply.request == 7
            assert why in reply.what
        finally:
            stranger.close()
        torch.testing.assert_close(await link.read_all(), first, rtol=0, atol=0)
    assert counts(service)["applied_slices"] == 0


@run_by(run_in_real_time)
async def test_before_the_first_value_an_exchange_is_refused_at_once(
    context: Context, sync_nodes: Start
) -> None:
    members = [member for _, member in sync_nodes(1, 0.5)]
    # Its timeout is as long as the test may take.
    async with linked(context, members, 10) as link:
        for call in (link.read(link.slices[0]), link.exchange(link.slices[0], torch.ones(10))):
            with pytest.raises(PeerLost, match="sync-0 answered: the center has no initial value yet"):
                await call
        assert link.refused_messages == 2
        await link.seed(torch.zeros(10))
        assert (await link.exchange(link.slices[0], torch.ones(10))).tolist() == [0.5] * 10
