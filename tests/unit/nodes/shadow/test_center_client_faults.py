"""The link to the center when answers are lost, late, wrong or never come; time is virtual."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import zmq
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.pipeline.wire.center_messages import CenterExchange, CenterValues
from shadowsync.pipeline.wire.messages import Failure, Pushed
from shadowsync.sync_algos.base import PeerLost
from shadowsync.sync_algos.easgd import EASGD, ElasticOptions
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.sync.center_messages import reply_of
from shadowsync.tests.support.sync.fake_center import Leaving, as_it_is
from shadowsync.tests.support.sync.fake_link import fake_link

Context = zmq.Context[zmq.Socket[bytes]]
NUMEL, CHUNK = 20, 4
RULE = EASGD(ElasticOptions(0.5)).center_rule


def dropping(times: int) -> Callable[[CenterValues], Leaving]:
    left = [times]

    def leaving(reply: CenterValues) -> Leaving:
        left[0] -= 1
        return [] if left[0] >= 0 else [reply]

    return leaving


def silent(reply: CenterValues) -> Leaving:  # noqa: ARG001
    return []


async def center(link: CenterClient) -> list[float]:
    return [float(value) for value in (await link.read_all()).tolist()]


@pytest.mark.parametrize("lost", [1, 5])
@run_by(run_in_virtual_time)
async def test_lost_answers_are_asked_for_again_and_applied_once(context: Context, lost: int) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=2.0) as (link, (fake,)):
        fake.leaving = dropping(lost)
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        assert delta.tolist() == [0.5] * NUMEL
        assert fake.state.applied_slices == 1
        # Only what was not answered was sent again.
        assert fake.state.repeated_chunks == lost
        assert len(fake.heard) == NUMEL // CHUNK + lost
        assert await center(link) == [0.5] * NUMEL


@run_by(run_in_virtual_time)
async def test_a_silent_node_is_lost_at_the_timeout_and_others_are_not(context: Context) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK, nodes=2, timeout_seconds=0.5) as (link, fakes):
        fakes[0].leaving = silent
        loop = asyncio.get_running_loop()
        before = loop.time()
        one, other = await asyncio.gather(
            *(link.exchange(part, torch.ones(len(part))) for part in link.slices), return_exceptions=True
        )
        assert isinstance(one, PeerLost)
        assert str(one) == "sync-0 did not answer within 500 ms"
        assert 0.5 <= loop.time() - before < 0.6
        assert isinstance(other, torch.Tensor)
        assert other.tolist() == [0.5] * (NUMEL // 2)
        # Asked twice; and it had applied the slice, once.
        assert len(fakes[0].heard) == 2 * len(fakes[1].heard)
        assert fakes[0].state.applied_slices == 1
        # When it speaks again, the next round is as usual.
        fakes[0].leaving = as_it_is
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL // 2))
        assert delta.tolist() == [0.25] * (NUMEL // 2)


@run_by(run_in_virtual_time)
async def test_a_node_that_is_gone_ends_what_waits_for_it_at_once(context: Context) -> None:
    # The timeout is far longer than the test may take.
    async with fake_link(context, RULE, NUMEL, CHUNK, nodes=2, timeout_seconds=600.0) as (link, fakes):
        fakes[0].leaving = silent
        waiting = [
            asyncio.ensure_future(link.exchange(link.slices[0], torch.ones(NUMEL // 2))),
            asyncio.ensure_future(link.read(link.slices[0])),
        ]
        await fakes[0].until_heard(6)
        link.mark_lost("another token")
        assert not any(future.done() for future in waiting)
        link.mark_lost(fakes[0].member.token)
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, PeerLost)
            assert str(ended) == "sync-0 is lost"
        heard = len(fakes[0].heard)
        with pytest.raises(PeerLost, match="sync-0 is lost"):
            await link.read_all()
        assert len(fakes[0].heard) == heard
        assert (await link.read(link.slices[1])).tolist() == [0.0] * (NUMEL // 2)


@run_by(run_in_virtual_time)
async def test_an_answer_to_an_earlier_request_is_not_taken_for_a_later_one(context: Context) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=0.6) as (link, (fake,)):
        held: list[CenterValues] = []

        def late(reply: CenterValues) -> Leaving:
            held.append(reply)
            return []

        fake.leaving = late
        with pytest.raises(PeerLost):
            await link.exchange(link.slices[0], torch.ones(NUMEL))
        # With the next request's answers all the old ones come, before and after them.
        old = list(held)
        fake.leaving = lambda reply: [*old, reply, *old]
        delta = await link.exchange(link.slices[0], torch.full((NUMEL,), 8.5))
        assert delta.tolist() == [4.0] * NUMEL
        assert link.refused_messages == 0


@pytest.mark.parametrize("change", [-1, 1])
@run_by(run_in_virtual_time)
async def test_an_answer_of_another_length_is_refused_and_asked_for_again(
    context: Context, caplog: pytest.LogCaptureFixture, change: int
) -> None:
    caplog.set_level(logging.ERROR)
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=2.0) as (link, fakes):
        wrong = [True]

        def leaving(reply: CenterValues) -> Leaving:
            if wrong.pop() if wrong else False:
                return [reply_of(reply.request, reply.start, np.full(CHUNK + change, 9.0, np.float32))]
            return [reply]

        fakes[0].leaving = leaving
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        assert delta.tolist() == [0.5] * NUMEL
        assert link.refused_messages == 1
    assert f"sync-0 answered with {CHUNK + change} elements; {CHUNK} are expected" in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf])
@run_by(run_in_virtual_time)
async def test_an_answer_that_is_not_finite_is_refused_and_asked_for_again(
    context: Context, caplog: pytest.LogCaptureFixture, value: float
) -> None:
    """It would make the replica so, and every replica, as all ask the same center."""
    caplog.set_level(logging.ERROR)
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=2.0) as (link, fakes):
        wrong = [True, True]

        def leaving(reply: CenterValues) -> Leaving:
            if reply.elements and wrong:
                wrong.pop()
                values = np.full(reply.elements, 9.0, np.float32)
                values[0] = value
                return [reply_of(reply.request, reply.start, values)]
            return [reply]

        fakes[0].leaving = leaving
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        assert delta.tolist() == [0.5] * NUMEL
        assert link.refused_messages == 2
        wrong.append(True)
        assert (await link.read(link.slices[0])).isfinite().all()
        assert link.refused_messages == 3
    assert "sync-0 answered with values that are not all finite" in caplog.text


@run_by(run_in_virtual_time)
async def test_an_answer_that_comes_twice_or_unasked_changes_nothing(context: Context) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK) as (link, fakes):

        def leaving(reply: CenterValues) -> Leaving:
            foreign = np.full(CHUNK, 9.0, np.float32)
            return [
                reply_of(reply.request + 7, reply.start, foreign),
                reply_of(reply.request, reply.start + 1, foreign),
                reply,
                reply_of(reply.request, reply.start, foreign),
            ]

        fakes[0].leaving = leaving
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        assert delta.tolist() == [0.5] * NUMEL


@run_by(run_in_virtual_time)
async def test_what_cannot_be_understood_is_counted_with_its_sender(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with fake_link(context, RULE, NUMEL, CHUNK) as (link, fakes):

        def leaving(reply: CenterValues) -> Leaving:
            if reply.start:
                return [reply]
            return [b"nonsense", Failure(0, "no room"), Pushed(1, repeated=False), reply]

        fakes[0].leaving = leaving
        delta = await link.exchange(link.slices[0], torch.ones(NUMEL))
        assert delta.tolist() == [0.5] * NUMEL
        assert link.refused_messages == 3
    for words in (
        "sync-0 sent an invalid message: ",
        "sync-0 answered: no room",
        "sync-0 answered with a pushed",
    ):
        assert words in caplog.text


@run_by(run_in_virtual_time)
async def test_a_repeat_has_the_same_values(context: Context) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=2.0) as (link, (fake,)):
        fake.leaving = dropping(NUMEL // CHUNK)
        replica = torch.arange(NUMEL, dtype=torch.float32)
        await link.exchange(link.slices[0], replica)
        sent: dict[int, list[bytes]] = {}
        for message in fake.heard:
            assert isinstance(message, CenterExchange)
            sent.setdefault(message.start, []).append(message.payload.tobytes())
        assert sorted(sent) == list(range(0, NUMEL, CHUNK))
        assert all(len(values) == 2 and len(set(values)) == 1 for values in sent.values())


@run_by(run_in_virtual_time)
async def test_what_cannot_be_sent_is_no_loss_of_the_peer(context: Context) -> None:
    async with fake_link(context, RULE, NUMEL, CHUNK, timeout_seconds=0.5) as (link, fakes):
        with pytest.raises(
            ValueError, match=r"float64 of shape \(20,\) given; contiguous float32 \[20\] is expected"
        ):
            await link.exchange(link.slices[0], torch.ones(NUMEL, dtype=torch.float64))
        assert fakes[0].heard == []
        assert (await link.exchange(link.slices[0], torch.ones(NUMEL))).tolist() == [0.5] * NUMEL
