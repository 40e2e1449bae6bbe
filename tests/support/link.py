"""Two conversations and a link between them that loses what a test says. No socket, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from shadowsync.pipeline.wire.conversation import Conversation
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.schema import Message

Body = dict[str, Any]
ENOUGH_SECONDS = 20.0


class Link:
    """Two conversations; `lose(message)` says which messages vanish on the way. Made on a loop."""

    def __init__(
        self,
        handle: Callable[[str, Body], Awaitable[Body]],
        lose: Callable[[Message], bool] = lambda message: False,  # noqa: ARG005
    ) -> None:
        self._lose = lose
        self.sent: list[Message] = []
        self.asker = Conversation("the far end", lambda message: self._carry(message, self.answerer), handle)
        self.answerer = Conversation("the near end", lambda message: self._carry(message, self.asker), handle)

    def _carry(self, message: Message, to: Conversation) -> None:
        self.sent.append(message)
        if not self._lose(message):
            frames = [bytes(memoryview(frame)) for frame in encode(message)]
            asyncio.get_running_loop().call_soon(lambda: to.receive(decode(frames)))

    def count(self, kind: type[Message]) -> int:
        """How many of a kind were sent, lost ones included."""
        return sum(isinstance(message, kind) for message in self.sent)


class Handler:
    """Answers {"n": body["n"] + 1} and counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Body]] = []

    async def __call__(self, verb: str, body: Body) -> Body:
        self.calls.append((verb, body))
        return {"n": body.get("n", 0) + 1}


def run(work: Awaitable[None]) -> None:
    """Runs a test's coroutine on a loop of its own, for a bounded time."""

    async def bounded() -> None:
        await asyncio.wait_for(work, ENOUGH_SECONDS)

    asyncio.run(bounded())
