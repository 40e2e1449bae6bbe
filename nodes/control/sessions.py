"""The coordinator's sessions with nodes and watchers, and its tasks' waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...pipeline.wire.rpc.channel import RpcChannel
from ...pipeline.wire.tasks import race

T = TypeVar("T")

# A silent sender is forgotten after this: nodes and the supervisor send more often, and most watchers never
# announce that they leave.
FORGET_SECONDS = 60.0
# A watcher sends a request every second.
PRESENT_SECONDS = 3.0

# How many request numbers a coordinator has; one that takes over begins above those of the one before.
REQUESTS_OF_ONE = 1 << 32
# Time limit of a watcher for the notice of the job's end.
END_NOTICE_SECONDS = 1.0


class SessionRegistry:
    """Open sessions by ZeroMQ identity, with last-seen times and watchers.

    Watchers subscribe to the notice of the job's end. An identity is its node's token in ASCII. Belongs to
    the coordinator's loop.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, RpcChannel] = {}
        self._seen_at: dict[bytes, float] = {}
        self._watchers: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._seen_at)

    def record_seen(self, identity: bytes, now: float) -> None:
        self._seen_at[identity] = now

    def seen_at(self, token: str) -> float | None:
        """Return when it last sent a message; None if it never did."""
        return self._seen_at.get(token.encode())

    def of(self, identity: bytes) -> RpcChannel | None:
        """Return its session, if it has one."""
        return self._sessions.get(identity)

    def begin(self, identity: bytes, session: RpcChannel) -> None:
        """Open a session at its first request."""
        self._sessions[identity] = session

    def watches(self, token: str) -> None:
        """Subscribe it to the end-of-job notice."""
        self._watchers.add(token.encode())

    def watchers(self, now: float) -> list[RpcChannel]:
        """Return the sessions of present watchers that subscribed to the end."""
        present = [
            identity
            for identity in self._watchers
            if now - self._seen_at.get(identity, now) < PRESENT_SECONDS
        ]
        return [self._sessions[identity] for identity in present if identity in self._sessions]

    def end(self, identity: bytes, why: str) -> None:
        """End a session; requests that wait for its reply fail."""
        session = self._sessions.pop(identity, None)
        if session is not None:
            session.close(why)

    def forget_silent(self, now: float, stays: Callable[[str], bool]) -> None:
        """Forget sessions silent for FORGET_SECONDS, except nodes'."""
        for identity, seen_at in tuple(self._seen_at.items()):
            if now - seen_at > FORGET_SECONDS and not stays(identity.decode("ascii", "replace")):
                del self._seen_at[identity]
                self._watchers.discard(identity)
                self.end(identity, "was silent")


class JobWaits:
    """Waits of the coordinator's tasks; they end when the job stops.

    Belongs to the coordinator's loop.
    """

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._changed = asyncio.Condition()

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition, a stop, or the timeout; return whether it holds."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(condition)

        waiters = {asyncio.ensure_future(wait()), asyncio.ensure_future(self._stopped.wait())}
        try:
            await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        return condition()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the coroutine's result; None if a stop of the job cancels it."""
        return await race(work, self._stopped.wait())

    async def notify(self) -> None:
        """Wake the waits for a change of members or ledger."""
        async with self._changed:
            self._changed.notify_all()
