"""Chunks that came before their round: of each peer those of one round, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...pipeline.wire.peer_messages import PeerChunk, PeerResult

Early = PeerChunk | PeerResult


class RoundId(NamedTuple):
    """A round: `number` counts within a generation. Ordered."""

    generation: int
    number: int


def round_of(message: object) -> RoundId:
    """The round that a message between trainers is of."""
    return RoundId(message.generation, message.number)  # type: ignore[attr-defined]


@dataclass
class _Kept:
    id: RoundId
    chunks: dict[int, Early] = field(default_factory=dict)
    bytes: int = 0


class EarlyChunks:
    """What peers streamed before this trainer was there, or knew of the generation.

    Args:
        most_bytes: what is kept of one peer at most; more than its values cannot be meant for one round.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: dict[int, _Kept] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is kept."""
        return sum(kept.bytes for kept in self._kept.values())

    def keep(self, peer: int, message: Early) -> None:
        """Keeps a chunk; those of an earlier round of this peer are forgotten.

        Raises:
            ValueError: it is too much, or of an earlier round than what is kept.
        """
        id = round_of(message)
        kept = self._kept.get(peer)
        if kept is not None and id < kept.id:
            raise ValueError(f"of round {id}, after one of round {kept.id}")
        if kept is None or kept.id != id:
            kept = self._kept[peer] = _Kept(id)
        if message.position in kept.chunks:
            return
        if kept.bytes + message.payload.nbytes > self._most:
            raise ValueError(f"more than {self._most} bytes for a round that is not here yet")
        kept.chunks[message.position] = message
        kept.bytes += message.payload.nbytes

    def take(self, peer: int, id: RoundId) -> list[Early]:
        """What is kept of a peer for a round, which is then forgotten."""
        kept = self._kept.get(peer)
        if kept is None or kept.id != id:
            return []
        return list(self._kept.pop(peer).chunks.values())

    def forget_before(self, generation: int) -> None:
        """Forgets what is of earlier generations."""
        self._kept = {peer: kept for peer, kept in self._kept.items() if kept.id.generation >= generation}
