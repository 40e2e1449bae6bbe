"""A connection that only notes what is sent."""

from __future__ import annotations

from typing import TypeVar, cast

from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection

from ..expected import of_type

M = TypeVar("M", bound=Message)


class RecordedConnection:
    """Stands for a `Connection` in tests of what is above it; whatever is sent must be encodable."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        encode(message)
        self.sent.append(message)

    def take(self) -> list[Message]:
        """What was sent since the last call."""
        taken, self.sent = self.sent, []
        return taken

    def only(self, kind: type[M]) -> M:
        """The one message that was sent since then, of this type."""
        (message,) = self.take()
        return of_type(kind, message)

    @property
    def connection(self) -> Connection:
        """Itself, as what the code under test takes."""
        return cast("Connection", self)
