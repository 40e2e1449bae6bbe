"""Requests and replies on the control link between the coordinator and a node.

A request is sent again until its reply comes; the receiver handles it once and repeats its reply. A
`Conversation` is one end of the link. It owns no socket: it is given the messages that arrive, and a function
that sends. All of it belongs to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from ..errors import ExitCode, ShadowSyncError
from .messages import Answer, Ask
from .retransmission import CONTROL
from .schema import Message
from .tasks import TaskSet

REMEMBERED_ANSWERS = 512

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

log = logging.getLogger(__name__)


class Refused(ShadowSyncError):
    """The peer replied to a request with an error; has its text and its exit code."""


class Gone(ShadowSyncError):
    """The peer left or died, or did not reply in time."""


class Conversation:
    """One end of a control link.

    Args:
        peer: name of the peer in logs and errors.
        send: passes a message to the socket; called on the loop's thread.
        handle: coroutine function (verb, body) -> body of the reply, for requests of the peer. A
            ShadowSyncError that it raises becomes a reply with `ok` false.
        repeatable: verbs that change nothing; their replies are not stored, and a repeated request is handled
            again.
        answered: called with the verb once the reply to a request is passed to `send`, unless it is an error
            or a repeat.
    """

    def __init__(
        self,
        peer: str,
        send: Callable[[Message], None],
        handle: Handler,
        *,
        repeatable: Collection[str] = (),
        answered: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.peer = peer
        self._send = send
        self._handle = handle
        self._repeatable = repeatable
        self._answered = answered
        self._next_number = 1
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._working: set[int] = set()
        self._answers: OrderedDict[int, Answer] = OrderedDict()
        self._tasks = TaskSet(self._not_answered)
        self._closed = ""

    async def ask(
        self, verb: str, body: dict[str, Any] | None = None, *, timeout_seconds: float
    ) -> dict[str, Any]:
        """Send a request until its reply comes, and return the body of the reply.

        Raises:
            Refused: the peer replied with an error.
            Gone: the peer left, or did not reply within the timeout.
        """
        if self._closed:
            raise Gone(self._closed, where=self.peer)
        number, self._next_number = self._next_number, self._next_number + 1
        question = Ask(number=number, verb=verb, body=body or {})
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            while True:
                self._send(question)
                left = deadline - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait(
                    {answered}, timeout=min(CONTROL.interval_seconds, max(left, 0.0))
                )
                if done:
                    return answered.result()
                if left <= CONTROL.interval_seconds:
                    raise Gone(f"did not answer {verb!r} within {timeout_seconds:g} s", where=self.peer)
        finally:
            self._waiting.pop(number, None)
            if answered.done() and not answered.cancelled():
                answered.exception()

    def receive(self, message: Message) -> None:
        """Process a message of the peer: a reply completes its request, a request is handled once."""
        if isinstance(message, Answer):
            future = self._waiting.get(message.number)
            if future is None or future.done():
                return
            if message.ok:
                future.set_result(message.body)
            else:
                future.set_exception(_refused(message.body))
        elif isinstance(message, Ask):
            self._receive_ask(message)
        else:
            log.error("refused a %s from %s on the control link", message.KIND, self.peer)

    def _receive_ask(self, ask: Ask) -> None:
        if ask.number in self._working:
            return
        if ask.number in self._answers:
            self._send(self._answers[ask.number])
            return
        self._working.add(ask.number)
        self._tasks.start(self._answer(ask))

    async def _answer(self, ask: Ask) -> None:
        try:
            body = await self._handle(ask.verb, ask.body)
            answer = Answer(number=ask.number, ok=True, body=body)
        except ShadowSyncError as error:
            refusal = {
                "what": error.what,
                "where": error.where,
                "remedy": error.remedy,
                "exit_code": int(error.exit_code),
            }
            answer = Answer(number=ask.number, ok=False, body=refusal)
        except Exception as error:
            log.exception("%s asked %r and it failed", self.peer, ask.verb)
            refusal = {"what": f"{ask.verb!r} failed: {type(error).__name__}: {error}"}
            answer = Answer(number=ask.number, ok=False, body=refusal)
        self._working.discard(ask.number)
        if ask.verb not in self._repeatable:
            self._answers[ask.number] = answer
        while len(self._answers) > REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)
        self._send(answer)
        if answer.ok:
            self._answered(ask.verb)

    def close(self, why: str) -> None:
        """Close this end: pending requests fail with `Gone(why)`, and handlers are cancelled."""
        self._closed = why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone(why, where=self.peer))
        self._tasks.cancel()

    def _not_answered(self, error: BaseException) -> None:
        log.error("an answer to %s could not be sent", self.peer, exc_info=error)


def _refused(body: dict[str, Any]) -> Refused:
    error = Refused(
        str(body.get("what", "refused")),
        where=str(body.get("where", "")),
        remedy=str(body.get("remedy", "")),
    )
    if (code := body.get("exit_code")) in tuple(ExitCode):
        error.exit_code = ExitCode(code)
    return error
