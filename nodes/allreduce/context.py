"""What the parts of the all-reduce protocol share: where this trainer stands among the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ...pipeline.wire.peer_messages import PeerReady, PeerWait
from ...pipeline.wire.retransmission import PEER_TIMES, RetransmitPolicy
from .coding import PeerCoding
from .early_chunks import EarlyChunks, RoundId
from .peer_events import Ended, Event, Late
from .peer_mail import PeerMail
from .round import PeerRound
from .round_memory import RoundMemory

BEFORE_ALL = RoundId(-1, -1)


@dataclass
class Standing:
    """One trainer's place in the protocol.

    A peer that is waited for is asked by `policy` for what is missing, several times in `timeout_seconds`,
    and late after all of it without progress.
    """

    index: int
    timeout_seconds: float
    coding: PeerCoding
    early: EarlyChunks
    mail: PeerMail = field(default_factory=PeerMail)
    memory: RoundMemory = field(default_factory=RoundMemory)
    events: deque[Event] = field(default_factory=deque)
    generation: int = -1
    members: tuple[int, ...] = ()
    next_number: int = 0
    broken_through: int = -1
    round: PeerRound | None = None
    ready: dict[int, PeerReady] = field(default_factory=dict)
    undecided_rounds: int = 0
    policy: RetransmitPolicy = field(init=False)
    _seen: dict[int, RoundId] = field(default_factory=dict)
    _reported: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.policy = RetransmitPolicy.in_timeout(self.timeout_seconds, PEER_TIMES)

    @property
    def usable(self) -> bool:
        """Whether rounds can be begun in this generation."""
        return self.index in self.members and self.generation > self.broken_through

    @property
    def upcoming(self) -> RoundId:
        """The round that would be begun next."""
        return RoundId(self.generation, self.next_number)

    @property
    def others(self) -> tuple[int, ...]:
        """The other members of this generation."""
        return tuple(member for member in self.members if member != self.index)

    def seen(self, peer: int) -> RoundId:
        """The latest round that a peer was heard to be ready for."""
        return self._seen.get(peer, BEFORE_ALL)

    def see(self, peer: int, id: RoundId) -> None:
        """A peer is ready for a round, so it is done with earlier ones."""
        if id > self.seen(peer):
            self._seen[peer] = id
            self.memory.passed(peer, id)

    def current(self, id: RoundId, peer: int) -> PeerRound | None:
        """The round under way, if it is that one and the peer is of its group."""
        round = self.round
        return round if round is not None and round.id == id and peer in round.others else None

    def wait(self, peer: int, id: RoundId, blocked_by: Iterable[int] = ()) -> None:
        """Tells a peer that this trainer is alive, and not that far."""
        self.mail.notice(peer, PeerWait(*id, np.array(list(blocked_by), dtype=np.int32)))

    def report(self, peer: int) -> None:
        """Says once a generation that a peer is late."""
        if (self.generation, peer) not in self._reported and peer in self.members:
            self._reported.add((self.generation, peer))
            self.events.append(Late(self.generation, peer))

    def break_through(self, generation: int) -> None:
        """This trainer begins no further round of a generation."""
        self.broken_through = max(self.broken_through, generation)

    def end(self, round: PeerRound, why: str) -> None:
        """The round under way ends here without a result, and never has one."""
        reduced = round.work is not None and round.work.reduced
        self.round = None
        self.memory.ended(round.id, reduced=reduced)
        self.mail.drop(round.id)
        self.break_through(round.id.generation)
        self.events.append(Ended(round.id, why))

    def complete(self, round: PeerRound) -> None:
        """The round under way is complete; its results are kept for those that lack them."""
        assert round.work is not None
        self.round = None
        others = [peer for peer in round.others if peer in self.members]
        self.memory.completed(round.id, round.work.packed, others)
        if round.id.generation == self.generation:
            self.next_number = round.id.number + 1
