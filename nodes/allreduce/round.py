"""One round of one trainer: its phase, its early chunks and its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ...pipeline.types import Float32Array
from ...pipeline.wire.peer_messages import PeerChunk, PeerVerdict
from ...pipeline.wire.rpc.retransmission import RetransmitPolicy
from .reduce import ReduceRound
from .state_transfer import StateReceiver


class RoundId(NamedTuple):
    """The id of a round; `number` counts within a generation. Ids are ordered."""

    generation: int
    number: int


def round_of(message: object) -> RoundId:
    """Return the round that a message between trainers belongs to."""
    return RoundId(message.generation, message.number)  # type: ignore[attr-defined]


@dataclass
class _BufferedRound:
    round_id: RoundId
    chunks: dict[int, PeerChunk] = field(default_factory=dict)
    bytes: int = 0


class ReorderBuffer:
    """Chunks that came before this trainer began their round.

    The trainer may not know of their generation yet. The chunks of one round are held for each peer, in
    bounded memory.

    Args:
        most_bytes: the most bytes held of one peer; one round cannot have more than its values.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._buffered: dict[int, _BufferedRound] = {}

    def add(self, peer: int, message: PeerChunk) -> None:
        """Hold a chunk; the chunks of this peer's earlier round are dropped.

        Raises:
            ValueError: it exceeds the limit, or its round is older than that of the held chunks.
        """
        round_id = round_of(message)
        buffered = self._buffered.get(peer)
        if buffered is not None and round_id < buffered.round_id:
            raise ValueError(f"a chunk of round {round_id} came after one of {buffered.round_id}")
        if buffered is None or buffered.round_id != round_id:
            buffered = self._buffered[peer] = _BufferedRound(round_id)
        if message.position in buffered.chunks:
            return
        if buffered.bytes + message.payload.nbytes > self._most:
            raise ValueError(f"chunks of a round that has not begun here exceed {self._most} bytes")
        buffered.chunks[message.position] = message
        buffered.bytes += message.payload.nbytes

    def take(self, peer: int, round_id: RoundId) -> list[PeerChunk]:
        """Remove and return the chunks of a peer for a round."""
        buffered = self._buffered.get(peer)
        if buffered is None or buffered.round_id != round_id:
            return []
        return list(self._buffered.pop(peer).chunks.values())

    def forget_before(self, generation: int) -> None:
        """Drop the chunks of earlier generations."""
        self._buffered = {
            peer: buffered
            for peer, buffered in self._buffered.items()
            if buffered.round_id.generation >= generation
        }


class RoundPhase(Enum):
    """Phases of a round.

    MEETING: waits for the others, or for the algorithm's state. MET: waits for this trainer's values.
    STREAMING: values and results are under way. RESOLVING: cannot end normally; asks who completed it.
    """

    MEETING = "meeting"
    MET = "met"
    STREAMING = "streaming"
    RESOLVING = "resolving"


class PeerRound:
    """One round of one trainer, and each peer's last progress in it.

    Args:
        group: the members, ascending; `index` is this trainer.
        version: the version of this trainer's state when the round began.
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
        self.began = now
        self._progress = dict.fromkeys(self.others, now)
        self._requested_at = dict.fromkeys(self.others, now)

    @property
    def streams(self) -> bool:
        """Whether this trainer gave its values and the round may still complete normally."""
        return self.phase is RoundPhase.STREAMING

    def record_progress(self, peer: int, now: float) -> None:
        """Record that a peer made progress, or is blocked by another."""
        self._progress[peer] = now

    def restart_timers(self, now: float) -> None:
        """Restart every peer's timer, for a new phase."""
        self._progress = dict.fromkeys(self.others, now)
        self.last_progress = now

    def silent(self, peer: int, now: float) -> float:
        """Return the seconds since a peer's last progress."""
        return now - self._progress[peer]

    def may_request(self, peer: int, now: float, policy: RetransmitPolicy) -> bool:
        """Return whether a request to a silent peer is due.

        If so, its time is recorded.
        """
        if not policy.due(max(self._progress[peer], self._requested_at[peer]), now):
            return False
        self._requested_at[peer] = now
        return True

    def blocked_by(self) -> list[int]:
        """Return the peers that this trainer waits for before it meets."""
        if self.state_receiver is not None:
            return [self.state_receiver.source]
        return (
            [peer for peer in self.others if peer not in self.ready]
            if self.phase is RoundPhase.MEETING
            else []
        )

    def completers(self) -> list[int]:
        """Return the peers that reported the round complete, ascending."""
        return sorted(peer for peer, verdict in self.verdicts.items() if verdict.completed)


@dataclass(frozen=True, slots=True)
class Met:
    """The group is ready: the caller takes its snapshot and starts the round."""

    round_id: RoundId
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The round is complete; `values` belong to the caller from now on."""

    round_id: RoundId
    values: Float32Array


@dataclass(frozen=True, slots=True)
class Ended:
    """The round, or the wait for one, ended without a result."""

    round_id: RoundId
    why: str


@dataclass(frozen=True, slots=True)
class Late:
    """A peer is late; the coordinator should remove it from the group."""

    generation: int
    index: int


@dataclass(frozen=True, slots=True)
class Excluded:
    """This trainer wants to meet, but is not in the group."""


RoundEvent = Met | Result | Ended | Late | Excluded


@dataclass(frozen=True)
class PeerCallbacks:
    """What the transport tells, called on its thread.

    Attributes:
        late: called with (generation, index) of a late trainer. The coordinator must answer with a
            `regroup`, since no further round begins in this generation.
        excluded: called once per `meet` if this trainer is not in the group.
        awaited: called when another trainer waits for a round that this one has not begun.
    """

    late: Callable[[int, int], None]
    excluded: Callable[[], None]
    awaited: Callable[[], None]
