"""Where one trainer is in one round, and when each of the others was last heard to go on.

Chunks that came before their round: of each peer those of one round, in bounded memory.

What the all-reduce's state machine tells whoever drives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ...pipeline.types import Float32Array
from ...pipeline.wire.peer_messages import PeerChunk, PeerResult, PeerVerdict
from ...pipeline.wire.retransmission import RetransmitPolicy
from .reduce import ReduceRound
from .state_transfer import StateReceiver

Early = PeerChunk | PeerResult


class RoundId(NamedTuple):
    """A round: `number` counts within a generation. Ordered."""

    generation: int
    number: int


def round_of(message: object) -> RoundId:
    """The round that a message between trainers is of."""
    return RoundId(message.generation, message.number)  # type: ignore[attr-defined]


@dataclass
class _BufferedRound:
    round_id: RoundId
    chunks: dict[int, Early] = field(default_factory=dict)
    bytes: int = 0


class ReorderBuffer:
    """What peers streamed before this trainer was there, or knew of the generation.

    Args:
        most_bytes: what is kept of one peer at most; more than its values cannot be meant for one round.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._buffered: dict[int, _BufferedRound] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is kept."""
        return sum(buffered.bytes for buffered in self._buffered.values())

    def add(self, peer: int, message: Early) -> None:
        """Keeps a chunk; those of an earlier round of this peer are forgotten.

        Raises:
            ValueError: it is too much, or of an earlier round than what is kept.
        """
        round_id = round_of(message)
        buffered = self._buffered.get(peer)
        if buffered is not None and round_id < buffered.round_id:
            raise ValueError(f"of round {round_id}, after one of round {buffered.round_id}")
        if buffered is None or buffered.round_id != round_id:
            buffered = self._buffered[peer] = _BufferedRound(round_id)
        if message.position in buffered.chunks:
            return
        if buffered.bytes + message.payload.nbytes > self._most:
            raise ValueError(f"more than {self._most} bytes for a round that is not here yet")
        buffered.chunks[message.position] = message
        buffered.bytes += message.payload.nbytes

    def take(self, peer: int, round_id: RoundId) -> list[Early]:
        """What is kept of a peer for a round, which is then forgotten."""
        buffered = self._buffered.get(peer)
        if buffered is None or buffered.round_id != round_id:
            return []
        return list(self._buffered.pop(peer).chunks.values())

    def forget_before(self, generation: int) -> None:
        """Forgets what is of earlier generations."""
        self._buffered = {
            peer: buffered
            for peer, buffered in self._buffered.items()
            if buffered.round_id.generation >= generation
        }


class RoundPhase(Enum):
    """MEETING: waits for the others, or for a state to adopt. MET: waits for this trainer's values.
    STREAMING: under way. RESOLVING: cannot end normally; asks who completed it."""

    MEETING = "meeting"
    MET = "met"
    STREAMING = "streaming"
    RESOLVING = "resolving"


class PeerRound:
    """One round of one trainer.

    Args:
        group: its members, ascending; `index` is this one.
        version: of this trainer's state when it began.
    """

    def __init__(
        self, round_id: RoundId, group: tuple[int, ...], index: int, version: int, now: float
    ) -> None:
        self.round_id = round_id
        self.group = group
        self.others = tuple(member for member in group if member != index)
        self.version = version
        self.phase = RoundPhase.MEETING
        self.ready: set[int] = set()
        self.state_receiver: StateReceiver | None = None
        self.work: ReduceRound | None = None
        self.survivors: set[int] = set()
        self.verdicts: dict[int, PeerVerdict] = {}
        self.resolving_since = now
        self.last_progress = now
        self._progress = dict.fromkeys(self.others, now)
        self._requested_at = dict.fromkeys(self.others, now)

    @property
    def streams(self) -> bool:
        """Whether the round may still complete normally, and this trainer has given its values."""
        return self.phase is RoundPhase.STREAMING

    def record_progress(self, peer: int, now: float) -> None:
        """A peer went on, or has a good reason not to."""
        self._progress[peer] = now

    def restart_timers(self, now: float) -> None:
        """A new phase: everyone's time begins anew."""
        self._progress = dict.fromkeys(self.others, now)
        self.last_progress = now

    def silent(self, peer: int, now: float) -> float:
        """For how long a peer has not gone on."""
        return now - self._progress[peer]

    def may_request(self, peer: int, now: float, policy: RetransmitPolicy) -> bool:
        """Whether it is time to ask a silent peer, again; if so, that is noted."""
        if not policy.due(max(self._progress[peer], self._requested_at[peer]), now):
            return False
        self._requested_at[peer] = now
        return True

    def blocked_by(self) -> list[int]:
        """Whom this trainer waits for before it meets."""
        if self.state_receiver is not None:
            return [self.state_receiver.donor]
        return (
            [peer for peer in self.others if peer not in self.ready]
            if self.phase is RoundPhase.MEETING
            else []
        )

    def completers(self) -> list[int]:
        """Who said that it completed the round."""
        return sorted(peer for peer, verdict in self.verdicts.items() if verdict.completed)


@dataclass(frozen=True, slots=True)
class Met:
    """The group is ready: take the snapshot and start the round."""

    round_id: RoundId
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The round is complete; `values` are the caller's from now on."""

    round_id: RoundId
    values: Float32Array


@dataclass(frozen=True, slots=True)
class Ended:
    """The round, or the wait for one, ended without a result."""

    round_id: RoundId
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """A peer is late; the coordinator should put it out."""

    generation: int
    index: int


@dataclass(frozen=True, slots=True)
class Excluded:
    """This trainer wants to meet, and is not of the group."""


Event = Met | Result | Ended | Late | Excluded
