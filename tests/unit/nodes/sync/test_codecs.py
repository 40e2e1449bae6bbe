"""The link to the center with lossy codecs: nothing is lost for good, and both ends hold one reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.role import CenterService
from shadowsync.pipeline.codecs.feedback import Reference
from shadowsync.pipeline.codecs.formats import CODECS, CodecOptions, LinkCodecs, make_codec
from shadowsync.pipeline.wire.center_messages import CenterExchange, CenterSeed, CenterValues
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.base import PeerLost
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.real_time import run_in_real_time
from shadowsync.tests.support.sync.center_messages import exchange_of
from shadowsync.tests.support.sync.fake_center import FakeCenter, Leaving, as_it_is
from shadowsync.tests.support.sync.fake_link import ENOUGH_SECONDS, fake_link

Context = zmq.Context[zmq.Socket[bytes]]
Start = Callable[..., list[tuple[CenterService, MemberInfo]]]
NUMEL, CHUNK = 320, 128
LOSSY = [name for name in sorted(CODECS) if make_codec(name).lossy]
OPTIONS = CodecOptions(int8_block=64, topk_fraction=0.1)
RULE = EASGD(ElasticOptions(0.5)).center_rule


def pair(up: str, down: str) -> LinkCodecs:
    return LinkCodecs(make_codec(up, OPTIONS), make_codec(down, OPTIONS))


def vector(seed: int, numel: int = NUMEL) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=numel).astype(np.float32))


def make_link(
    context: Context,
    members: Sequence[MemberInfo],
    codecs: LinkCodecs,
    numel: int = NUMEL,
    chunk_bytes: int = 4 * CHUNK,
) -> CenterClient:
    return CenterClient(
        context,
        members,
        numel,
        "a/shadow",
        chunk_bytes=chunk_bytes,
        timeout_seconds=ENOUGH_SECONDS,
        codecs=codecs,
    )


@asynccontextmanager
async def linked(
    context: Context, codecs: LinkCodecs, timeout_seconds: float = ENOUGH_SECONDS
) -> AsyncIterator[tuple[CenterClient, FakeCenter]]:
    """A link to a fake node that has the first value: all zeros."""
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=timeout_seconds, codecs=codecs) as (
        link,
        (fake,),
    ):
        yield link, fake


def references(fake: FakeCenter) -> list[int]:
    """What the exchanges' chunks that were heard since the last call refer to."""
    found = [message.reference for message in fake.heard if isinstance(message, CenterExchange)]
    fake.heard.clear()
    return found


@pytest.mark.parametrize("name", LOSSY)
@run_by(run_in_real_time)
async def test_the_center_and_a_replica_that_stays_meet(
    context: Context, sync_nodes: Start, name: str
) -> None:
    """What each way loses is made up for; the first values and what is read are exact."""
    codecs = pair(name, name)
    members = [member for _, member in sync_nodes(2, 0.5, codecs)]
    with closing(make_link(context, members, codecs)) as link:
        first, target, received = vector(0), vector(1), torch.zeros(NUMEL)
        await link.seed(first)
        torch.testing.assert_close(await link.read_all(), first, rtol=0, atol=0)
        for _ in range(60):
            for part in link.slices:
                cut = slice(part.start, part.stop)
                received[cut] += await link.exchange(part, target[cut].clone())
        center = await link.read_all()
        torch.testing.assert_close(center, target, rtol=0, atol=1e-5)
        # What the answers say together is how far the center went, but for what is still owed.
        torch.testing.assert_close(received, center - first, rtol=0, atol=0.02)


@run_by(run_in_real_time)
async def test_as_many_bytes_fewer_enter_the_sockets(context: Context, sync_nodes: Start) -> None:
    codecs, numel, least = LinkCodecs(make_codec("int8"), make_codec("int8")), 100_000, 3.5
    ((service, member),) = sync_nodes(1, 0.5, codecs)
    with closing(make_link(context, [member], codecs, numel, 1 << 17)) as link:
        await link.seed(torch.zeros(numel))
        seeded = link.sent_bytes
        for number in range(40):
            await link.exchange(link.slices[0], vector(number, numel))
        counts = link.metrics()
        assert link.sent_bytes - seeded == counts["center_up_bytes"]
        assert counts["center_up_float32_bytes"] == counts["center_down_float32_bytes"] == 40 * 4 * numel
        # The first one up is float32, and counts.
        assert counts["center_up_float32_bytes"] / counts["center_up_bytes"] > least * 0.93
        assert counts["center_down_float32_bytes"] / counts["center_down_bytes"] > least
        # And one chunk to work with.
        assert counts["reference_bytes"] == 4 * numel + (1 << 17)
        assert service.metrics()["reference_bytes"] == 8 * numel


async def deltas_of_five(context: Context, codecs: LinkCodecs, *, losing: bool) -> list[torch.Tensor]:
    """What five exchanges answer, and the center then; `losing` each answer of the third one once."""
    lost: set[int] = set()

    def first_time_lost(reply: CenterValues) -> Leaving:
        leaves = reply.start in lost
        lost.add(reply.start)
        return [reply] if leaves else []

    async with linked(context, codecs, 1.0 if losing else ENOUGH_SECONDS) as (link, fake):
        received = []
        for number in range(1, 6):
            fake.leaving = first_time_lost if losing and number == 3 else as_it_is
            received.append(await link.exchange(link.slices[0], vector(number)))
        assert (fake.state.applied_slices, fake.state.repeated_chunks) == (5, 3 if losing else 0)
        return [*received, await link.read_all()]


@pytest.mark.parametrize("up", ["float32", "int8", "topk"])
@run_by(run_in_virtual_time)
async def test_a_lost_answer_moves_nothing_twice(context: Context, up: str) -> None:
    codecs = pair(up, "int8")
    expected = await deltas_of_five(context, codecs, losing=False)
    for one, other in zip(await deltas_of_five(context, codecs, losing=True), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def changed_by(
    codecs: LinkCodecs, rounds: list[list[int]], size: int, length: int
) -> tuple[bytes, list[bytes]]:
    """The center, and all answers in order, after rounds whose chunks come in these orders, perhaps twice."""
    state = CenterState(RULE, codecs)
    state.seed(CenterSeed(1, 0, length, 0, vector(0, length).numpy()))
    reference = Reference(codecs.up, length)
    replies = []
    for number, order in enumerate(rounds, start=1):
        values = vector(number, length).numpy()
        reference.begin()
        messages = {}
        for start in range(0, length, size):
            part = values[start : start + size]
            version, encoded = reference.encode(start, part)
            messages[start] = CenterExchange(number, start, len(part), version, encoded.payload)
        found = {}
        for place in order:
            for reply in state.exchange(b"a/0", messages[place * size]):
                found[reply.start] = reply.payload.tobytes()
        reference.complete(number)
        replies += [found[start] for start in sorted(found)]
    assert state.values is not None
    return state.values.numpy().tobytes(), replies


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(CODECS)),
    st.sampled_from(sorted(CODECS)),
    st.integers(1, 60),
    st.integers(1, 20),
    st.data(),
)
def test_the_order_of_chunks_and_repeats_change_nothing(
    up: str, down: str, length: int, size: int, data: st.DataObject
) -> None:
    count = -(-length // size)
    places = st.permutations(range(count))
    drawn = data.draw(st.lists(st.tuples(places, places), min_size=1, max_size=4))
    codecs = pair(up, down)
    # Chunks that come again before the slice is whole, and after it.
    orders = [[*first[: count // 2], *first, *again[: count // 3]] for first, again in drawn]
    plain = changed_by(codecs, [list(range(count))] * len(drawn), size, length)
    assert changed_by(codecs, orders, size, length) == plain


@run_by(run_in_virtual_time)
async def test_after_a_timeout_the_next_exchange_is_float32_and_the_one_after_is_not(
    context: Context,
) -> None:
    async with linked(context, pair("int8", "int8"), 0.4) as (link, fake):
        (part,) = link.slices
        await link.exchange(part, vector(1))
        await link.exchange(part, vector(2))
        assert references(fake) == [0] * 3 + [2] * 3
        fake.leaving = lambda _: []
        with pytest.raises(PeerLost, match="did not answer"):
            await link.exchange(part, vector(3))
        fake.leaving = as_it_is
        # Sent twice, the same both times; the center applied it.
        assert references(fake) == [3] * 6
        assert fake.state.applied_slices == 3
        center = await link.read_all()
        delta = await link.exchange(part, vector(4))
        assert references(fake) == [0] * 3
        after = await link.read_all()
        # Not a trace of a wrong reference: the center takes the exact values.
        torch.testing.assert_close(after, center + 0.5 * (vector(4) - center), rtol=0, atol=1e-6)
        assert delta.shape == (NUMEL,)
        await link.exchange(part, vector(5))
        assert references(fake) == [6] * 3


@run_by(run_in_virtual_time)
async def test_a_node_that_forgot_refuses_at_once_and_the_next_exchange_starts_anew(context: Context) -> None:
    # The timeout is far longer than the test may take.
    async with linked(context, pair("int8", "int8"), 600.0) as (link, fake):
        (part,) = link.slices
        await link.exchange(part, vector(1))
        assert fake.state.reference_bytes == 2 * 4 * NUMEL
        # As a node would that was started anew with the center's values.
        fake.state._sessions.clear()
        center = await link.read_all()
        with pytest.raises(PeerLost, match="refers to exchange 2, but this end holds exchange 0"):
            await link.exchange(part, vector(2))
        torch.testing.assert_close(await link.read_all(), center, rtol=0, atol=0)
        await link.exchange(part, vector(3))
        after = await link.read_all()
        torch.testing.assert_close(after, center + 0.5 * (vector(3) - center), rtol=0, atol=1e-6)


@run_by(run_in_virtual_time)
async def test_a_cancelled_exchange_leaves_no_reference(context: Context) -> None:
    async with linked(context, pair("int8", "float32")) as (link, fake):
        (part,) = link.slices
        await link.exchange(part, vector(1))
        fake.leaving = lambda _: []
        exchange = asyncio.ensure_future(link.exchange(part, vector(2)))
        await fake.until_heard(6)
        exchange.cancel()
        await asyncio.gather(exchange, return_exceptions=True)
        fake.leaving = as_it_is
        fake.heard.clear()
        await link.exchange(part, vector(3))
        assert references(fake) == [0] * 3


@run_by(run_in_virtual_time)
async def test_a_replica_that_diverged_is_refused_and_the_next_one_is_not(context: Context) -> None:
    async with linked(context, pair("int8", "int8")) as (link, fake):
        (part,) = link.slices
        await link.exchange(part, vector(1))
        center = await link.read_all()
        diverged = vector(2)
        diverged[200] = float("nan")
        with pytest.raises(PeerLost, match="the 128 elements from 128 are not all finite"):
            await link.exchange(part, diverged)
        torch.testing.assert_close(await link.read_all(), center, rtol=0, atol=0)
        delta = await link.exchange(part, vector(3))
        assert torch.isfinite(delta).all()
        assert torch.isfinite(await link.read_all()).all()
        assert fake.state.applied_slices == 2


@run_by(run_in_virtual_time)
async def test_a_payload_that_is_none_is_refused_and_the_center_stays(context: Context) -> None:
    async with linked(context, pair("int8", "int8")) as (link, fake):
        (part,) = link.slices
        await link.exchange(part, vector(1))
        center = await link.read_all()
        current = fake.state.exchange(b"x/0", exchange_of(1, 0, np.ones(NUMEL, np.float32)))
        assert len(current) == 1
        moved = await link.read_all()
        assert not torch.equal(moved, center)
        for payload in (np.zeros(3, np.uint8), np.full(340, 0xFF, np.uint8)):
            bad = CenterExchange(2, 0, NUMEL, 1, payload)
            with pytest.raises(ValueError, match="int8"):
                fake.state.exchange(b"x/0", bad)
        torch.testing.assert_close(await link.read_all(), moved, rtol=0, atol=0)
        assert fake.state.applied_slices == 2


@run_by(run_in_virtual_time)
async def test_an_answer_that_cannot_be_decoded_is_asked_for_again(context: Context) -> None:
    async with linked(context, pair("float32", "int8"), 1.0) as (link, fake):
        wrong = [True]

        def leaving(reply: CenterValues) -> Leaving:
            if wrong.pop() if wrong else False:
                short = reply.payload[:-1].copy()
                return [CenterValues(reply.request, reply.start, reply.elements, True, short)]
            return [reply]

        fake.leaving = leaving
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        torch.testing.assert_close(delta, torch.full((NUMEL,), 0.5), rtol=0, atol=1e-6)
        assert link.refused_messages == 1
