"""How requests end when they are not answered: refusals, failures, timeouts, a link that closes."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.messages import Credit, ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.rpc.channel import ConnectionLost, RemoteError, RpcChannel
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


@run_by(run)
async def test_a_refusal_comes_back_in_its_words() -> None:
    async def refuse(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
        raise ClusterError("the job is full", where=str(request), remedy="start fewer")

    link = Link(refuse)
    with pytest.raises(RemoteError) as refused:
        await link.requester.call(Add(3), timeout_seconds=ENOUGH_SECONDS)
    error = refused.value
    assert (error.what, error.where, error.remedy) == ("the job is full", "Add(n=3)", "start fewer")
    assert error.exit_code is ExitCode.CLUSTER
    assert link.refused == [], "it was understood"


def test_a_handler_that_fails_is_logged_and_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def fail(request: Request[Any], number: int) -> Reply:  # noqa: ARG001  # noqa: ARG001
            raise KeyError("missing")

        link = Link(fail)
        with pytest.raises(RemoteError, match="'slow' failed: KeyError: 'missing'"):
            await link.requester.call(Slow(), timeout_seconds=ENOUGH_SECONDS)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "KeyError" in caplog.text


@run_by(run)
async def test_without_an_answer_the_other_side_is_gone_at_the_timeout() -> None:
    link = Link(Handler(), lambda message: True)  # noqa: ARG005
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(ConnectionLost, match=r"the far end: did not answer 'add' within 50 ms"):
        await link.requester.call(Add(), timeout_seconds=0.05)
    assert loop.time() - before == pytest.approx(0.05)
    assert 2 <= link.count(RequestMessage) <= 6


@run_by(run)
async def test_an_answer_after_the_timeout_changes_nothing() -> None:
    sent = asyncio.Queue[Message]()
    requester = RpcChannel("far", sent.put_nowait, Handler(), verbs=VERBS)
    with pytest.raises(ConnectionLost):
        await requester.call(Add(1), timeout_seconds=0.001)
    assert await sent.get() == RequestMessage(number=1, verb="add", body=[1])
    waiting = asyncio.ensure_future(requester.call(Add(2), timeout_seconds=ENOUGH_SECONDS))
    assert await sent.get() == RequestMessage(number=2, verb="add", body=[2])
    requester.receive(ReplyMessage(number=1, ok=True, body=[2]))
    requester.receive(ReplyMessage(number=9, ok=True, body=[9]))
    requester.receive(ReplyMessage(number=2, ok=True, body=[3]))
    requester.receive(ReplyMessage(number=2, ok=False, body=["again", "", "", 1]))
    assert await waiting == Sum(3)


@run_by(run)
async def test_closing_ends_what_waits_and_refuses_what_comes() -> None:
    sent, begun, cancelled = asyncio.Queue[Message](), asyncio.Event(), asyncio.Event()

    async def hang(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Sum(0)

    channel = RpcChannel("far", sent.put_nowait, hang, verbs=VERBS)
    waiting = [asyncio.ensure_future(channel.call(Add(), timeout_seconds=ENOUGH_SECONDS)) for _ in range(3)]
    channel.receive(RequestMessage(number=1, verb="slow", body=[0]))
    for _ in range(3):
        assert isinstance(await sent.get(), RequestMessage)
    await begun.wait()
    channel.close("it died")
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, ConnectionLost)
        assert str(ended) == "far: it died"
    await cancelled.wait()
    asked = sent.qsize()
    with pytest.raises(ConnectionLost, match="it died"):
        await channel.call(Add(), timeout_seconds=ENOUGH_SECONDS)
    assert sent.qsize() == asked


@run_by(run)
async def test_another_message_is_refused_and_the_channel_goes_on() -> None:
    link = Link(Handler())
    link.requester.receive(Credit(limit=1, received=0, done=0))
    assert link.refused == ["a credit on the control link"]
    assert await link.requester.call(Add(), timeout_seconds=ENOUGH_SECONDS) == Sum(1)


def test_what_nobody_counts_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        channel = RpcChannel("the far end", lambda _: None, Handler())
        channel.receive(Credit(limit=1, received=0, done=0))

    run(main())
    assert "refused a message from the far end: a credit on the control link" in caplog.text


@pytest.mark.parametrize(
    ("verb", "body", "why"),
    [
        ("subtract", [1], "the unknown verb 'subtract'"),
        ("add", ["x"], "add: n: an integer is expected, not 'x'"),
        ("add", [-1], "add: n: a finite number from 0"),
        ("add", [], r"add: a list of 1 values \(n\) is expected, not \[\]"),
    ],
)
@run_by(run)
async def test_what_is_not_understood_is_named_counted_and_answered_once(
    verb: str, body: list[Any], why: str
) -> None:
    sent, refused, handler = asyncio.Queue[Message](), list[str](), Handler()
    channel = RpcChannel("near", sent.put_nowait, handler, refused=refused.append, verbs=VERBS)
    for _ in range(2):
        channel.receive(RequestMessage(number=1, verb=verb, body=body))
        reply = await sent.get()
        assert isinstance(reply, ReplyMessage)
        assert not reply.ok
        assert re.search(why, reply.body[0])
    assert len(refused) == 1
    assert handler.calls == []


@pytest.mark.parametrize(("ok", "body"), [(True, ["x"]), (False, [1, "", "", 1]), (False, ["a", "", "", 99])])
@run_by(run)
async def test_a_reply_that_is_not_understood_is_counted_and_ends_the_request(
    ok: bool, body: list[Any]
) -> None:
    sent, refused = asyncio.Queue[Message](), list[str]()
    channel = RpcChannel("far", sent.put_nowait, Handler(), refused=refused.append, verbs=VERBS)
    waiting = asyncio.ensure_future(channel.call(Add(1), timeout_seconds=ENOUGH_SECONDS))
    await sent.get()
    channel.receive(ReplyMessage(number=1, ok=ok, body=body))
    with pytest.raises(RemoteError, match="is expected"):
        await waiting
    assert len(refused) == 1
