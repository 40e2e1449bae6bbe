"""Two RPC channels and a link between them that loses what a test says. No socket, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.pipeline.wire.control.base import Reply, Request, Verb, VerbTable
from shadowsync.pipeline.wire.field_checks import Count
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.rpc.channel import HandleRequest, RpcChannel
from shadowsync.pipeline.wire.schema import Message

ENOUGH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sum(Reply):
    """A number."""

    n: Count


@dataclass(frozen=True, slots=True)
class Add(Request[Sum]):
    """Asks for `n` + 1."""

    n: Count = 0


@dataclass(frozen=True, slots=True)
class Slow(Request[Sum]):
    """Asks for something that takes long."""

    n: Count = 0


@dataclass(frozen=True, slots=True)
class Look(Request[Sum]):
    """Asks for something that changes nothing."""

    n: Count = 0


_ANYONE = frozenset({"anyone"})
VERBS = VerbTable(
    {
        "add": Verb(Add, Sum, _ANYONE, _ANYONE),
        "slow": Verb(Slow, Sum, _ANYONE, _ANYONE),
        "look": Verb(Look, Sum, _ANYONE, _ANYONE, repeatable=True),
    }
)


class Link:
    """Two channels; `lose(message)` says which messages vanish on the way. Made on a loop."""

    def __init__(
        self,
        handle: HandleRequest,
        lose: Callable[[Message], bool] = lambda message: False,  # noqa: ARG005
    ) -> None:
        self._lose = lose
        self.sent: list[Message] = []
        self.refused: list[str] = []
        self.requester = RpcChannel(
            "the far end",
            lambda message: self._carry(message, self.responder),
            handle,
            refused=self.refused.append,
            verbs=VERBS,
        )
        self.responder = RpcChannel(
            "the near end",
            lambda message: self._carry(message, self.requester),
            handle,
            refused=self.refused.append,
            verbs=VERBS,
        )

    def _carry(self, message: Message, to: RpcChannel) -> None:
        self.sent.append(message)
        if not self._lose(message):
            frames = [bytes(memoryview(frame)) for frame in encode(message)]
            asyncio.get_running_loop().call_soon(lambda: to.receive(decode(frames)))

    def count(self, kind: type[Message]) -> int:
        """How many of a kind were sent, lost ones included."""
        return sum(isinstance(message, kind) for message in self.sent)


class Handler:
    """Answers `n` + 1 and counts."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def __call__(self, request: Request[Any], number: int = 0) -> Reply:  # noqa: ARG002
        self.calls.append(request)
        assert isinstance(request, Add | Slow | Look)
        return Sum(request.n + 1)


def run(work: Awaitable[None]) -> None:
    """Runs a test's coroutine on a loop of its own, for a bounded time, which is virtual."""

    async def bounded() -> None:
        await asyncio.wait_for(work, ENOUGH_SECONDS)

    run_in_virtual_time(bounded())
