"""Requests that are sent until answered, and answered once, over a link that loses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.messages import ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.rpc import channel as rpc_channel
from shadowsync.pipeline.wire.rpc.channel import RpcChannel
from shadowsync.pipeline.wire.schema import Message
from shadowsync.tests.support.coordinator.link import (
    ENOUGH_SECONDS,
    VERBS,
    Add,
    Handler,
    Link,
    Slow,
    Sum,
    run,
)
from shadowsync.tests.support.coroutines import run_by

pytestmark = pytest.mark.usefixtures("resend_soon")


def dropping(kind: type[Message], times: int) -> Callable[[Message], bool]:
    left = [times]

    def lose(message: Message) -> bool:
        if isinstance(message, kind) and left[0] > 0:
            left[0] -= 1
            return True
        return False

    return lose


@run_by(run)
async def test_a_question_is_answered_both_ways() -> None:
    handler = Handler()
    link = Link(handler)
    assert await link.requester.call(Add(1), timeout_seconds=ENOUGH_SECONDS) == Sum(2)
    assert await link.responder.call(Add(), timeout_seconds=ENOUGH_SECONDS) == Sum(1)
    assert handler.calls == [Add(1), Add()]
    assert len(link.sent) == 4


@pytest.mark.parametrize("kind", [RequestMessage, ReplyMessage])
@pytest.mark.parametrize("times", [1, 3])
@run_by(run)
async def test_what_is_lost_is_sent_again_and_handled_once(kind: type[Message], times: int) -> None:
    handler = Handler()
    link = Link(handler, dropping(kind, times))
    assert await link.requester.call(Add(1), timeout_seconds=ENOUGH_SECONDS) == Sum(2)
    assert handler.calls == [Add(1)]
    assert link.count(RequestMessage) >= times + 1
    assert link.count(ReplyMessage) >= (times + 1 if kind is ReplyMessage else 1)


@run_by(run)
async def test_a_question_that_takes_long_is_asked_again_but_handled_once() -> None:
    calls, finish = list[Request[Any]](), asyncio.Event()

    async def slow(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
        calls.append(request)
        await finish.wait()
        return Sum(3)

    def finish_at_the_fourth(message: Message) -> bool:
        if isinstance(message, RequestMessage) and link.count(RequestMessage) == 4:
            finish.set()
        return False

    link = Link(slow, finish_at_the_fourth)
    assert await link.requester.call(Slow(), timeout_seconds=ENOUGH_SECONDS) == Sum(3)
    assert calls == [Slow()]
    assert link.count(RequestMessage) >= 4


@run_by(run)
async def test_a_repeat_is_answered_from_memory_with_the_first_answer() -> None:
    handler, replies = Handler(), asyncio.Queue[Message]()
    responder = RpcChannel("near", replies.put_nowait, handler, verbs=VERBS)
    request_message = RequestMessage(number=7, verb="add", body=[1])
    responder.receive(request_message)
    first = await replies.get()
    assert first == ReplyMessage(number=7, ok=True, body=[2])
    responder.receive(request_message)
    responder.receive(RequestMessage(number=7, verb="slow", body=[5]))
    assert [replies.get_nowait(), replies.get_nowait()] == [first, first]
    assert len(handler.calls) == 1


@run_by(run)
async def test_many_at_once_over_a_lossy_link_are_each_handled_once() -> None:
    handler = Handler()
    chance = random.Random(1)
    link = Link(handler, lambda message: chance.random() < 0.5)  # noqa: ARG005
    replies = await asyncio.gather(
        *(link.requester.call(Add(n), timeout_seconds=ENOUGH_SECONDS) for n in range(200))
    )
    assert replies == [Sum(n + 1) for n in range(200)]
    assert Counter(request.n for request in handler.calls) == Counter(range(200))
    assert link.count(RequestMessage) > 200


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 12))
def test_whatever_is_lost_each_is_handled_once(losses: list[bool], questions: int) -> None:
    async def main() -> None:
        handler, plan = Handler(), iter(losses)
        link = Link(handler, lambda message: next(plan, False))  # noqa: ARG005
        asked = (link.requester.call(Add(n), timeout_seconds=ENOUGH_SECONDS) for n in range(questions))
        assert await asyncio.gather(*asked) == [Sum(n + 1) for n in range(questions)]
        assert sorted(request.n for request in handler.calls) == list(range(questions))

    run(main())


def test_memory_is_bounded_but_keeps_what_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_channel, "REMEMBERED_REPLIES", 4)

    async def main() -> None:
        calls, finish, replies = list[int](), asyncio.Event(), asyncio.Queue[Message]()

        async def handle(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
            assert isinstance(request, Add | Slow)
            calls.append(request.n)
            if isinstance(request, Slow):
                await finish.wait()
            return Sum(0)

        responder = RpcChannel("near", replies.put_nowait, handle, verbs=VERBS)
        slow = RequestMessage(number=1, verb="slow", body=[1])
        responder.receive(slow)
        for number in range(2, 20):
            responder.receive(RequestMessage(number=number, verb="add", body=[number]))
            assert await replies.get() == ReplyMessage(number=number, ok=True, body=[0])
        responder.receive(slow)
        finish.set()
        assert await replies.get() == ReplyMessage(number=1, ok=True, body=[0])
        for number in (1, 17, 19):
            responder.receive(RequestMessage(number=number, verb="add", body=[number]))
            assert replies.get_nowait() == ReplyMessage(number=number, ok=True, body=[0])
        assert calls == list(range(1, 20))
        assert len(responder._reply_messages) == 4
        assert not responder._working

    run(main())


@run_by(run)
async def test_answers_that_change_nothing_are_not_remembered() -> None:
    handler, sent = Handler(), asyncio.Queue[Message]()
    channel = RpcChannel("a watcher", sent.put_nowait, handler, verbs=VERBS)

    async def twice(verb: str, number: int) -> int:
        before = len(handler.calls)
        for _ in range(2):
            channel.receive(RequestMessage(number=number, verb=verb, body=[0]))
            await sent.get()
        return len(handler.calls) - before

    assert await twice("look", 1) == 2
    assert await twice("add", 2) == 1, "the control"
