"""The coordinator's open sessions, by ZeroMQ identity."""

from __future__ import annotations

from collections.abc import Callable

from ...pipeline.wire.conversation import Conversation

# Nodes and the supervisor are heard more often; of those who only watch, most never say that they leave.
FORGET_SECONDS = 60.0
# One who watches asks every second.
THERE_SECONDS = 3.0


class SessionRegistry:
    """Who is heard, and who wants to be told of the end. Belongs to the coordinator's loop.

    An identity is the token of who has it, in ASCII.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, Conversation] = {}
        self._heard: dict[bytes, float] = {}
        self._watchers: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._heard)

    def hear(self, identity: bytes, now: float) -> None:
        """It sent a message."""
        self._heard[identity] = now

    def heard_at(self, token: str) -> float | None:
        """When it was heard last; None if it never was."""
        return self._heard.get(token.encode())

    def of(self, identity: bytes) -> Conversation | None:
        """Its session, if it has one."""
        return self._sessions.get(identity)

    def begin(self, identity: bytes, session: Conversation) -> None:
        """It asked its first question."""
        self._sessions[identity] = session

    def watches(self, token: str) -> None:
        """It wants to be told of the end."""
        self._watchers.add(token.encode())

    def watchers(self, now: float) -> list[Conversation]:
        """Of those who want to be told of the end, and are there."""
        there = [one for one in self._watchers if now - self._heard.get(one, now) < THERE_SECONDS]
        return [self._sessions[one] for one in there if one in self._sessions]

    def end(self, identity: bytes, why: str) -> None:
        """Its session ends; what waits for an answer of it gets none."""
        session = self._sessions.pop(identity, None)
        if session is not None:
            session.close(why)

    def forget_silent(self, now: float, stays: Callable[[str], bool]) -> None:
        """Forgets whoever was silent for FORGET_SECONDS; `stays` says of a token whether it is a node's."""
        for identity, heard in tuple(self._heard.items()):
            if now - heard > FORGET_SECONDS and not stays(identity.decode("ascii", "replace")):
                del self._heard[identity]
                self._watchers.discard(identity)
                self.end(identity, "was silent")
