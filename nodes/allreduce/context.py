"""The queue, history and membership that the all-reduce protocol's parts share."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ...pipeline.wire.peer_messages import PeerReady, PeerWait
from ...pipeline.wire.rpc.retransmission import PEER_TIMES, RetransmitPolicy
from ...pipeline.wire.schema import Message
from .coding import EncodedChunk, PeerCoding
from .round import Ended, Late, PeerRound, ReorderBuffer, RoundEvent, RoundId
from .state_transfer import Key

MOST_NOTICES = 256
REMEMBERED_ROUNDS = 64
MOST_SAVED_RESULTS = 2
BEFORE_ALL = RoundId(-1, -1)

Make = Callable[[], Message | None]


class SendQueue:
    """Queues per peer: small messages first, then chunks, made when sent."""

    def __init__(self) -> None:
        # By peer, then by what a notice says; in the order of sending.
        self._notices: dict[int, dict[Hashable, Message]] = {}
        self._chunks: dict[int, dict[Key, Make]] = {}

    def notice(self, peer: int, message: Message) -> None:
        """Queue a small message.

        An equal one that is queued already is not queued twice.
        """
        waiting = self._notices.setdefault(peer, {})
        waiting.setdefault(_content_of(message), message)
        if len(waiting) > MOST_NOTICES:
            del waiting[next(iter(waiting))]

    def chunk(self, peer: int, key: Key, make: Make) -> None:
        """Queue a chunk once per `key`.

        `make` returns the chunk when its turn comes, or None to skip it.
        """
        self._chunks.setdefault(peer, {}).setdefault(key, make)

    def has_chunks(self, peer: int) -> bool:
        return bool(self._chunks.get(peer))

    def drop(self, group: object) -> None:
        """Drop the queued chunks whose key begins with `group`."""
        for peer, chunks in self._chunks.items():
            self._chunks[peer] = {key: make for key, make in chunks.items() if key[0] != group}

    def forget(self, peer: int) -> None:
        self._notices.pop(peer, None)
        self._chunks.pop(peer, None)

    def waiting(self) -> list[int]:
        """Return the peers with queued messages, ascending."""
        peers = self._notices.keys() | self._chunks.keys()
        return sorted(peer for peer in peers if self._notices.get(peer) or self._chunks.get(peer))

    def take(self, peer: int) -> Message | None:
        """Remove and return the next message for a peer, or None."""
        if notices := self._notices.get(peer):
            return notices.pop(next(iter(notices)))
        chunks = self._chunks.get(peer, {})
        while chunks:
            key = next(iter(chunks))
            message = chunks.pop(key)()
            if message is not None:
                return message
        return None


def _content_of(message: Message) -> Hashable:
    """Return what two notices have in common if one of them is enough.

    A notice has no number. Its arrays have a value for each trainer at most.
    """
    values = (getattr(message, name) for name in type(message).__dataclass_fields__)  # type: ignore[attr-defined]
    return type(message), *(value.tobytes() if isinstance(value, np.ndarray) else value for value in values)


@dataclass
class _SavedResult:
    round_id: RoundId
    packed: dict[int, EncodedChunk]
    waiting: set[int]


class RoundHistory:
    """Outcomes of past rounds.

    The last results are kept while a peer may lack them.
    """

    def __init__(self) -> None:
        self._completed: OrderedDict[RoundId, bool] = OrderedDict()
        # For rounds without a result: whether this trainer had reduced its slice (see `PeerVerdict`).
        self._reduced: OrderedDict[RoundId, bool] = OrderedDict()
        self._results: list[_SavedResult] = []

    def completed(self, round_id: RoundId, packed: dict[int, EncodedChunk], others: Iterable[int]) -> None:
        """Record a completed round; `others` may still lack its results."""
        _remember(self._completed, round_id, True)
        self._results.append(_SavedResult(round_id, packed, set(others)))
        del self._results[:-MOST_SAVED_RESULTS]
        self._drop()

    def ended(self, round_id: RoundId, *, reduced: bool) -> None:
        """Record a round that ended here without a result, for good."""
        _remember(self._reduced, round_id, reduced)

    def is_completed(self, round_id: RoundId) -> bool:
        return round_id in self._completed

    def is_ended(self, round_id: RoundId) -> bool:
        """Return whether a round is known to have ended here without a result."""
        return round_id in self._reduced

    def had_reduced(self, round_id: RoundId) -> bool:
        """Return whether this trainer had reduced its slice.

        If that is not known, return True, which decides nothing.
        """
        return self._reduced.get(round_id, True)

    def results(self, round_id: RoundId) -> dict[int, EncodedChunk]:
        """Return the results of a round by position.

        Empty if they are no longer saved.
        """
        return next((saved.packed for saved in self._results if saved.round_id == round_id), {})

    def release_before(self, peer: int, round_id: RoundId) -> None:
        """Release the results of rounds before the one that a peer has reached."""
        for saved in self._results:
            if saved.round_id < round_id:
                saved.waiting.discard(peer)
        self._drop()

    def retain_members(self, members: Collection[int]) -> None:
        """Release results that only trainers outside of `members` may lack."""
        for saved in self._results:
            saved.waiting &= set(members)
        self._drop()

    def _drop(self) -> None:
        self._results = [saved for saved in self._results if saved.waiting]


def _remember(into: OrderedDict[RoundId, bool], round_id: RoundId, value: bool) -> None:
    into[round_id] = value
    while len(into) > REMEMBERED_ROUNDS:
        into.popitem(last=False)


@dataclass
class ProtocolContext:
    """One trainer's shared state in the protocol.

    An awaited peer is asked for what is missing as `policy` says, several times within `timeout_seconds`. The
    peer is late after `timeout_seconds` without progress.

    `waited_seconds` has for how long rounds waited here for the last of their trainers to be ready, by its
    index.
    """

    index: int
    timeout_seconds: float
    coding: PeerCoding
    reorder_buffer: ReorderBuffer
    send_queue: SendQueue = field(default_factory=SendQueue)
    history: RoundHistory = field(default_factory=RoundHistory)
    events: deque[RoundEvent] = field(default_factory=deque)
    generation: int = -1
    members: tuple[int, ...] = ()
    next_number: int = 0
    abandoned_generation: int = -1
    current_round: PeerRound | None = None
    ready: dict[int, PeerReady] = field(default_factory=dict)
    undecided_rounds: int = 0
    waited_seconds: dict[int, float] = field(default_factory=dict)
    policy: RetransmitPolicy = field(init=False)
    _seen: dict[int, RoundId] = field(default_factory=dict)
    _reported: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.policy = RetransmitPolicy.in_timeout(self.timeout_seconds, PEER_TIMES)

    @property
    def usable(self) -> bool:
        """Whether rounds can begin in this generation."""
        return self.index in self.members and self.generation > self.abandoned_generation

    @property
    def upcoming(self) -> RoundId:
        """The round that would begin next."""
        return RoundId(self.generation, self.next_number)

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(member for member in self.members if member != self.index)

    def latest_ready(self, peer: int) -> RoundId:
        """Return the latest round that a peer reported to be ready for."""
        return self._seen.get(peer, BEFORE_ALL)

    def record_ready(self, peer: int, round_id: RoundId) -> None:
        """Record a peer as ready for a round, and done with earlier ones."""
        if round_id > self.latest_ready(peer):
            self._seen[peer] = round_id
            self.history.release_before(peer, round_id)

    def find_round(self, round_id: RoundId, peer: int) -> PeerRound | None:
        """Return the current round; None with another id or without the peer."""
        peer_round = self.current_round
        return (
            peer_round
            if peer_round is not None and peer_round.round_id == round_id and peer in peer_round.others
            else None
        )

    def wait(self, peer: int, round_id: RoundId, blocked_by: Iterable[int] = ()) -> None:
        """Tell a peer to wait for this trainer.

        This trainer is alive but has not reached that round.
        """
        self.send_queue.notice(peer, PeerWait(*round_id, np.array(list(blocked_by), dtype=np.int32)))

    def waited(self, peer: int, seconds: float) -> None:
        """Count for how long a round waited for a peer, the last one to be ready."""
        self.waited_seconds[peer] = self.waited_seconds.get(peer, 0.0) + seconds

    def report_late(self, peer: int) -> None:
        """Report a late peer, once per generation."""
        if (self.generation, peer) not in self._reported and peer in self.members:
            self._reported.add((self.generation, peer))
            self.events.append(Late(self.generation, peer))

    def abandon_generation(self, generation: int) -> None:
        """Begin no further round of a generation."""
        self.abandoned_generation = max(self.abandoned_generation, generation)

    def end(self, peer_round: PeerRound, why: str) -> None:
        """End the current round without a result, for good."""
        reduced = peer_round.work is not None and peer_round.work.reduced
        self.current_round = None
        self.history.ended(peer_round.round_id, reduced=reduced)
        self.send_queue.drop(peer_round.round_id)
        self.abandon_generation(peer_round.round_id.generation)
        self.events.append(Ended(peer_round.round_id, why))

    def complete(self, peer_round: PeerRound) -> None:
        """Complete the current round; its results are saved for peers that lack them."""
        assert peer_round.work is not None
        self.current_round = None
        others = [peer for peer in peer_round.others if peer in self.members]
        self.history.completed(peer_round.round_id, peer_round.work.packed, others)
        if peer_round.round_id.generation == self.generation:
            self.next_number = peer_round.round_id.number + 1
