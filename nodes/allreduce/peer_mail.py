"""What one trainer has to send to the others: notices, and then chunks, made when there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...pipeline.wire.schema import Message

Key = tuple[object, ...]
Make = Callable[[], Message | None]


class PeerMail:
    """A queue of small messages and one of chunks for each peer. What waits already is not queued twice."""

    def __init__(self) -> None:
        self._notices: dict[int, deque[Message]] = {}
        self._chunks: dict[int, dict[Key, Make]] = {}

    def notice(self, peer: int, message: Message) -> None:
        """Queues a small message; one that waits already is not queued twice."""
        waiting = self._notices.setdefault(peer, deque(maxlen=256))
        if not any(type(other) is type(message) and _same(other, message) for other in waiting):
            waiting.append(message)

    def chunk(self, peer: int, key: Key, make: Make) -> None:
        """Queues what `make` gives when its turn comes; None if it is not wanted any more."""
        self._chunks.setdefault(peer, {}).setdefault(key, make)

    def has_chunks(self, peer: int) -> bool:
        """Whether chunks wait for a peer."""
        return bool(self._chunks.get(peer))

    def drop(self, group: object) -> None:
        """Forgets the chunks that wait and whose key begins with `group`."""
        for peer, chunks in self._chunks.items():
            self._chunks[peer] = {key: make for key, make in chunks.items() if key[0] != group}

    def waiting(self) -> list[int]:
        """The peers that something waits for."""
        peers = self._notices.keys() | self._chunks.keys()
        return sorted(peer for peer in peers if self._notices.get(peer) or self._chunks.get(peer))

    def take(self, peer: int) -> Message | None:
        """The next message for a peer."""
        if notices := self._notices.get(peer):
            return notices.popleft()
        chunks = self._chunks.get(peer, {})
        while chunks:
            key = next(iter(chunks))
            message = chunks.pop(key)()
            if message is not None:
                return message
        return None


def _same(one: Message, other: Message) -> bool:
    names = type(one).__dataclass_fields__  # type: ignore[attr-defined]
    return all(_equal(getattr(one, name), getattr(other, name)) for name in names)


def _equal(one: object, other: object) -> bool:
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return one == other
