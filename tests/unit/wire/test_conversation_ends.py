"""How questions end when they are not answered: refusals, failures, timeouts, a link that closes."""

from __future__ import annotations

import asyncio
import logging

import pytest
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.conversation import Conversation, Gone, Refused
from shadowsync.pipeline.wire.messages import Answer, Ask, Credit
from shadowsync.pipeline.wire.schema import Message
from shadowsync.tests.support.link import ENOUGH_SECONDS, Body, Handler, Link, run

pytestmark = pytest.mark.usefixtures("resend_soon")


def test_a_refusal_comes_back_in_its_words() -> None:
    async def main() -> None:
        async def refuse(verb: str, body: Body) -> Body:
            raise ClusterError("the job is full", where=verb, remedy=str(body["remedy"]))

        link = Link(refuse)
        with pytest.raises(Refused) as refused:
            await link.asker.ask("hello", {"remedy": "start fewer"}, timeout_seconds=ENOUGH_SECONDS)
        error = refused.value
        assert (error.what, error.where, error.remedy) == ("the job is full", "hello", "start fewer")

    run(main())


def test_a_handler_that_fails_is_logged_and_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def fail(verb: str, body: Body) -> Body:  # noqa: ARG001
            raise KeyError("missing")

        link = Link(fail)
        with pytest.raises(Refused, match="'work' failed: KeyError: 'missing'"):
            await link.asker.ask("work", timeout_seconds=ENOUGH_SECONDS)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "KeyError" in caplog.text


def test_without_an_answer_the_other_side_is_gone_at_the_timeout() -> None:
    async def main() -> None:
        link = Link(Handler(), lambda message: True)  # noqa: ARG005
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(Gone, match=r"the far end: did not answer 'add' within 0\.05 s"):
            await link.asker.ask("add", timeout_seconds=0.05)
        assert loop.time() - before >= 0.03
        assert 2 <= link.count(Ask) <= 6

    run(main())


def test_an_answer_after_the_timeout_changes_nothing() -> None:
    async def main() -> None:
        sent = asyncio.Queue[Message]()
        asker = Conversation("far", sent.put_nowait, Handler())
        with pytest.raises(Gone):
            await asker.ask("first", timeout_seconds=0.001)
        assert await sent.get() == Ask(number=1, verb="first", body={})
        waiting = asyncio.ensure_future(asker.ask("second", timeout_seconds=ENOUGH_SECONDS))
        assert await sent.get() == Ask(number=2, verb="second", body={})
        asker.receive(Answer(number=1, ok=True, body={"to": "first"}))
        asker.receive(Answer(number=9, ok=True, body={"to": "nobody"}))
        asker.receive(Answer(number=2, ok=True, body={"to": "second"}))
        asker.receive(Answer(number=2, ok=False, body={"what": "again"}))
        assert await waiting == {"to": "second"}

    run(main())


def test_closing_ends_what_waits_and_refuses_what_comes() -> None:
    async def main() -> None:
        sent, begun, cancelled = asyncio.Queue[Message](), asyncio.Event(), asyncio.Event()

        async def hang(verb: str, body: Body) -> Body:  # noqa: ARG001
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return {}

        talk = Conversation("far", sent.put_nowait, hang)
        waiting = [asyncio.ensure_future(talk.ask("x", timeout_seconds=ENOUGH_SECONDS)) for _ in range(3)]
        talk.receive(Ask(number=1, verb="hang", body={}))
        for _ in range(3):
            assert isinstance(await sent.get(), Ask)
        await begun.wait()
        talk.close("it died")
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, Gone)
            assert str(ended) == "far: it died"
        await cancelled.wait()
        asked = sent.qsize()
        with pytest.raises(Gone, match="it died"):
            await talk.ask("late", timeout_seconds=ENOUGH_SECONDS)
        assert sent.qsize() == asked

    run(main())


def test_another_message_is_refused_and_the_talk_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        link = Link(Handler())
        link.asker.receive(Credit(limit=1, received=0, done=0))
        assert await link.asker.ask("add", timeout_seconds=ENOUGH_SECONDS) == {"n": 1}

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "refused a credit from the far end" in caplog.text
