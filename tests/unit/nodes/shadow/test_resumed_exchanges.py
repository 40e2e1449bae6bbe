"""Exchanges that ended without a reply and are resumed: applied once, over the real link and center."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import shadowsync
import torch
import zmq
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.shadow.zmq_peers import ZmqPeers
from shadowsync.pipeline.codecs.formats import CODECS, CodecOptions, LinkCodecs, make_codec
from shadowsync.pipeline.wire.center_messages import CenterValues
from shadowsync.sync_algos.base import PeerLost, Slice
from shadowsync.sync_algos.memory.center import MemoryReplica
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.sync.fake_center import FakeCenter, Leaving, as_it_is
from shadowsync.tests.support.sync.fake_link import fake_link

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.algorithms.downpour import Downpour, DownpourOptions

Context = zmq.Context[zmq.Socket[bytes]]
NUMEL, CHUNK = 20, 4
TIMEOUT_SECONDS = 0.5


@dataclass
class Link:
    """A client, its one fake node, and how to lose what goes between them."""

    client: CenterClient
    node: FakeCenter

    def lose(self, what: str) -> None:
        """Lose all requests, all replies, half of either, or nothing."""
        self.node.deaf = what == "requests"
        self.node.leaving = {"replies": _nothing, "half": _first_half}.get(what, as_it_is)

    async def lose_exchange(self, what: str) -> Slice:
        """Lose so much of an exchange of ones; gives its slice."""
        (part,) = self.client.slices
        self.lose(what)
        with pytest.raises(PeerLost):
            await self.client.exchange(part, torch.ones(NUMEL))
        return part

    async def center(self) -> list[float]:
        return [float(value) for value in (await self.client.read_all()).tolist()]


def _nothing(reply: CenterValues) -> Leaving:  # noqa: ARG001
    return []


def _first_half(reply: CenterValues) -> Leaving:
    return [reply] if reply.start < NUMEL // 2 else []


@asynccontextmanager
async def linked(
    context: Context, codecs: LinkCodecs | None = None, *, counts_once: bool = False
) -> AsyncIterator[Link]:
    """A link to a node whose slice is all zeros."""
    async with fake_link(
        context,
        Downpour(DownpourOptions()).center_rule,
        NUMEL,
        CHUNK,
        timeout_seconds=TIMEOUT_SECONDS,
        codecs=codecs,
        deltas=True,
        counts_once=counts_once,
    ) as (client, (node,)):
        yield Link(client, node)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_a_resumed_exchange_counts_once(context: Context, lost: str, times: int) -> None:
    async with linked(context) as link:
        part = await link.lose_exchange(lost)
        for _ in range(times - 1):
            with pytest.raises(PeerLost):
                await link.client.resume_exchange(part)
        link.lose("nothing")
        assert (await link.client.resume_exchange(part)).tolist() == [1.0] * NUMEL
        assert link.node.state.applied_slices == 1
        assert await link.center() == [1.0] * NUMEL
        with pytest.raises(RuntimeError, match="the last exchange of elements 0 to 20 was answered"):
            await link.client.resume_exchange(part)
        assert (await link.client.exchange(part, torch.ones(NUMEL))).tolist() == [2.0] * NUMEL


@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_it_is_resumed_with_a_node_that_was_declared_dead_and_came_back(
    context: Context, lost: str
) -> None:
    async with linked(context, counts_once=True) as link:
        part = await link.lose_exchange(lost)
        link.client.mark_lost(link.node.member.token)
        with pytest.raises(PeerLost):
            await link.client.resume_exchange(part)
        link.lose("nothing")
        await link.client.replace(0, dataclasses.replace(link.node.member, token="its new token"))
        await link.client.seed(torch.full((NUMEL,), 7.0), 0)
        assert (await link.client.resume_exchange(part)).tolist() == [1.0] * NUMEL
        assert link.node.state.applied_slices == 1
        assert await link.center() == [1.0] * NUMEL


@pytest.mark.parametrize("lost", ["requests", "replies"])
@run_by(run_in_virtual_time)
async def test_a_new_exchange_in_its_place_counts_what_it_can_not_know(context: Context, lost: str) -> None:
    """The control: the same values sent as a new exchange count twice if only the reply was lost."""
    async with linked(context) as link:
        part = await link.lose_exchange(lost)
        link.lose("nothing")
        await link.client.exchange(part, torch.ones(NUMEL))
        assert await link.center() == [2.0 if lost == "replies" else 1.0] * NUMEL


@run_by(run_in_virtual_time)
async def test_the_reply_is_that_of_when_it_was_applied(context: Context) -> None:
    """Others move the center meanwhile; the trainer's account is of the moment of its own delta."""
    async with linked(context) as link:
        part = await link.lose_exchange("replies")
        link.lose("nothing")
        assert link.node.state.values is not None
        link.node.state.values.add_(8.0)
        assert (await link.client.resume_exchange(part)).tolist() == [1.0] * NUMEL
        assert (await link.client.exchange(part, torch.zeros(NUMEL))).tolist() == [9.0] * NUMEL


@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_with_the_sparse_codec_nothing_is_lost(context: Context, lost: str) -> None:
    sparse = make_codec("sparse")
    async with linked(context, LinkCodecs(sparse, sparse)) as link:
        part, values = link.client.slices[0], torch.zeros(NUMEL)
        values[7] = 3.0
        link.lose(lost)
        with pytest.raises(PeerLost):
            await link.client.exchange(part, values)
        link.lose("nothing")
        assert torch.equal(await link.client.resume_exchange(part), values)


@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_with_a_lossy_codec_the_references_stay_the_same(context: Context, lost: str) -> None:
    """What is sent again is what was encoded at first, so both ends hold the same values afterwards."""
    async with linked(context, LinkCodecs(make_codec("int8"), make_codec("float32"))) as link:
        part = link.client.slices[0]
        values = torch.linspace(-1.0, 1.0, NUMEL)
        for number in range(3):
            link.lose(lost if number == 1 else "nothing")
            try:
                reply = await link.client.exchange(part, values)
            except PeerLost:
                link.lose("nothing")
                reply = await link.client.resume_exchange(part)
            torch.testing.assert_close(reply, (number + 1) * values, atol=0.05, rtol=0.0)
        assert link.node.state.applied_slices == 3
        assert link.client.refused_messages == 0


@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_downpour_over_the_link_counts_every_delta_once(context: Context, lost: str) -> None:
    async with linked(context) as link:
        algorithm, replica = Downpour(DownpourOptions()), MemoryReplica(torch.zeros(NUMEL))
        algorithm.start(replica)
        peers = ZmqPeers(0, link.client, None)
        results, trained = [], 0.0
        for number in range(6):
            replica.values.add_(2.0**number)
            trained += 2.0**number
            link.lose(lost if number in (1, 2, 4) else "nothing")
            results.append(await algorithm.round(replica, peers))
            if not results[-1]:
                # Each step has its own bit: a delta that counts twice or never shows.
                assert replica.values.tolist() == [trained] * NUMEL
        assert results == [True, False, False, True, False, True]
        assert await link.center() == [trained] * NUMEL
        assert replica.values.tolist() == [trained] * NUMEL


LOSSY = [name for name in CODECS if make_codec(name).lossy]


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_what_a_codec_loses_of_a_delta_counts_once_and_in_the_end(
    context: Context, lost: str, name: str
) -> None:
    codec = make_codec(name, CodecOptions(int8_block=64, topk_fraction=0.25))
    async with linked(context, LinkCodecs(codec, make_codec("float32")), counts_once=True) as link:
        algorithm, replica = Downpour(DownpourOptions()), MemoryReplica(torch.zeros(NUMEL))
        algorithm.start(replica)
        peers = ZmqPeers(0, link.client, None)
        trained, draws = torch.zeros(NUMEL), torch.Generator().manual_seed(1)
        owed = []
        for number in range(12):
            step = torch.randn(NUMEL, generator=draws)
            trained += step
            replica.values.add_(step)
            link.lose(lost if number in (1, 2, 6) else "nothing")
            complete = await algorithm.round(replica, peers)
            assert complete == (number not in (1, 2, 6))
            # What the center lacks is still in the replica, whatever was lost on the way.
            close(replica.values, trained)
            if complete:
                owed.append(trained - torch.tensor(await link.center()))
                close(owed[-1], link.client.lost(link.client.slices[0]))
        assert max(one.abs().max() for one in owed) > 1e-4, "the control: the codec loses something"
        link.client.set_exact(is_exact=True)
        assert await algorithm.round(replica, peers)
        close(torch.tensor(await link.center()), trained)
        close(replica.values, trained)
        assert link.client.refused_messages == 0


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("lost", ["requests", "replies", "half"])
@run_by(run_in_virtual_time)
async def test_answers_by_a_lossy_codec_come_near_the_center_and_stay_the_same_at_both_ends(
    context: Context, lost: str, name: str
) -> None:
    codec = make_codec(name, CodecOptions(int8_block=64, topk_fraction=0.25))
    async with linked(context, LinkCodecs(make_codec("float32"), codec), counts_once=True) as link:
        (part,) = link.client.slices
        delta = torch.linspace(-1.0, 1.0, NUMEL)
        for number in range(120):
            link.lose(lost if number in (1, 2) else "nothing")
            given = delta if number < 4 else torch.zeros(NUMEL)
            try:
                reply = await link.client.exchange(part, given)
            except PeerLost:
                link.lose("nothing")
                reply = await link.client.resume_exchange(part)
            if number == 3:
                off = (reply - torch.tensor(await link.center())).abs().max()
        assert off > 1e-4, "the control: the codec loses something"
        close(reply, 4.0 * delta)
        assert link.client.refused_messages == 0


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0.0)
