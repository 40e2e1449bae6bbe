"""Requests that are repeated until a reply comes, and handled once.

An `RpcChannel` is one end of the control link between the coordinator and one peer. It owns no socket: its
owner passes received messages to `receive`, and gives it a function that sends. Only the thread of one
asyncio loop may use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from ...errors import ExitCode, ProtocolError, ShadowSyncError
from ...text.format import duration
from ..control.base import ErrorReply, Reply, ReplyType, Request, VerbTable, decode_error, encode_body
from ..control.verbs import CONTROL_VERBS
from ..messages import ReplyMessage, RequestMessage
from ..refusals import Refusals
from ..schema import Message
from ..tasks import TaskSet
from .retransmission import CONTROL

REMEMBERED_REPLIES: Final = 512
MAX_ERROR_CHARACTERS: Final = 8192

HandleRequest = Callable[[Request[Any], int], Awaitable[Reply]]

log = logging.getLogger(__name__)


class RemoteError(ShadowSyncError):
    """The other side answered a request with an error.

    The exception has the text and the exit code of that error.
    """


class ImpossibleReply(RemoteError):
    """The other side answered a request with something that cannot be."""


class ConnectionLost(ShadowSyncError):
    """The other side left, died, or did not answer in time."""


class RpcChannel:
    """One end of a control link.

    Args:
        peer: name of the other side in logs and errors.
        send: function that passes a message to the socket; called on the loop's thread.
        handle: coroutine function that takes a request of the other side and its number, and returns the
            reply. An exception becomes an error reply.
        refused: called with the reason if a message is refused for its form; by default the reason is logged.
        verbs: the table of allowed requests.
        first_number: number of the first request; it must be new to the other side.
        replies: earlier replies to the other side's requests by number, because it may repeat the requests.
    """

    def __init__(
        self,
        peer: str,
        send: Callable[[Message], None],
        handle: HandleRequest,
        *,
        refused: Callable[[str], None] | None = None,
        verbs: VerbTable = CONTROL_VERBS,
        first_number: int = 1,
        replies: Mapping[int, Reply] | None = None,
    ) -> None:
        self.peer = peer
        self._send = send
        self._handle = handle
        self._refusals = Refusals(log)
        self._refused = refused or self._log_refused
        self._verbs = verbs
        self._next_number = first_number
        self._waiting: dict[int, tuple[Request[Any], asyncio.Future[Reply]]] = {}
        self._working: set[int] = set()
        self._reply_messages = OrderedDict(
            (number, ReplyMessage(number=number, ok=True, body=encode_body(reply)))
            for number, reply in (replies or {}).items()
        )
        self._tasks = TaskSet(self._reply_failed)
        self._closed = ""

    async def call(self, request: Request[ReplyType], *, timeout_seconds: float) -> ReplyType:
        """Send a request until it is answered; return the reply.

        Raises:
            RemoteError: the other side answered with an error, or with something that cannot be; the latter
                is an ImpossibleReply.
            ConnectionLost: the other side left, or did not answer within the timeout.
        """
        if self._closed:
            raise ConnectionLost(self._closed, where=self.peer)
        number, self._next_number = self._next_number, self._next_number + 1
        verb = self._verbs.name_of(request)
        message = RequestMessage(number=number, verb=verb, body=encode_body(request))
        replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = request, replied
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            while True:
                self._send(message)
                left = deadline - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait({replied}, timeout=min(CONTROL.interval_seconds, max(left, 0.0)))
                if done:
                    # The table of verbs says which reply belongs to which request.
                    return cast(ReplyType, replied.result())
                if left <= CONTROL.interval_seconds:
                    raise ConnectionLost(
                        f"did not answer {verb!r} within {duration(timeout_seconds)}", where=self.peer
                    )
        finally:
            self._waiting.pop(number, None)
            if replied.done() and not replied.cancelled():
                replied.exception()

    def receive(self, message: Message) -> None:
        """Process a message of the other side.

        A reply ends the `call` of its request. A request is handled once; if it is repeated, its reply is
        sent again.
        """
        if isinstance(message, ReplyMessage):
            self._receive_reply(message)
        elif isinstance(message, RequestMessage):
            self._receive_request(message)
        else:
            self._refused(f"a {message.KIND} on the control link")

    def _receive_reply(self, reply_message: ReplyMessage) -> None:
        request, future = self._waiting.get(reply_message.number, (None, None))
        if request is None or future is None or future.done():
            return
        verb = self._verbs.name_of(request)
        try:
            if not reply_message.ok:
                future.set_exception(_remote_error(decode_error(reply_message.body)))
                return
            reply = self._verbs.decode_reply(verb, reply_message.body)
            request.require(reply)
        except ProtocolError as error:
            self._refuse_reply(future, error.what)
        except ValueError as error:
            self._refuse_reply(future, f"the reply to {verb}: {error}")
        else:
            future.set_result(reply)

    def _refuse_reply(self, future: asyncio.Future[Reply], why: str) -> None:
        self._refused(why)
        future.set_exception(ImpossibleReply(why, where=self.peer))

    def _receive_request(self, message: RequestMessage) -> None:
        if message.number in self._working:
            return
        if message.number in self._reply_messages:
            self._send(self._reply_messages[message.number])
            return
        self._working.add(message.number)
        self._tasks.start(self._handle_message(message))

    async def _handle_message(self, message: RequestMessage) -> None:
        try:
            request = self._verbs.decode_request(message.verb, message.body)
        except ProtocolError as error:
            self._refused(str(error))
            # It costs the sender, and nobody else.
            error.exit_code = ExitCode.STOPPED_BY_DEATH
            reply_message = _error_reply(message.number, error)
        else:
            reply_message = await self._handled(message, request)
        self._working.discard(message.number)
        known = self._verbs.verbs.get(message.verb)
        if known is None or not known.repeatable:
            self._reply_messages[message.number] = reply_message
        while len(self._reply_messages) > REMEMBERED_REPLIES:
            self._reply_messages.popitem(last=False)
        self._send(reply_message)

    async def _handled(self, message: RequestMessage, request: Request[Any]) -> ReplyMessage:
        try:
            reply = await self._handle(request, message.number)
            return ReplyMessage(number=message.number, ok=True, body=encode_body(reply))
        except ShadowSyncError as error:
            return _error_reply(message.number, error)
        except Exception as error:
            log.exception("request %r of %s failed", message.verb, self.peer)
            what = f"{message.verb!r} failed: {type(error).__name__}: {error}"
            return ReplyMessage(number=message.number, ok=False, body=encode_body(ErrorReply(_short(what))))

    def _log_refused(self, why: str) -> None:
        self._refusals.add("refused a message from %s: %s", self.peer, why)

    def close(self, why: str) -> None:
        """End the channel.

        Each waiting `call` raises `ConnectionLost(why)`; the handling of requests is cancelled.
        """
        self._closed = why
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(why, where=self.peer))
        self._tasks.cancel()

    def _reply_failed(self, error: BaseException) -> None:
        log.error("an answer to %s could not be sent", self.peer, exc_info=error)


def _short(text: str) -> str:
    return text[:MAX_ERROR_CHARACTERS]


def _error_reply(number: int, error: ShadowSyncError) -> ReplyMessage:
    reply = ErrorReply(_short(error.what), _short(error.where), _short(error.remedy), error.exit_code)
    return ReplyMessage(number=number, ok=False, body=encode_body(reply))


def _remote_error(reply: ErrorReply) -> RemoteError:
    error = RemoteError(reply.what, where=reply.where, remedy=reply.remedy)
    error.exit_code = reply.exit_code
    return error
