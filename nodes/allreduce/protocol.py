"""The all-reduce protocol of one trainer as a state machine without I/O or clock.

Rules "No silent loss" and "Whole or not at all" (docs/architecture.md).

What happens comes in (`regroup`, `want`, `start`, `receive`, `tick`); what is to be sent is taken from
`standing.mail`, what has happened from `standing.events`.

A round has the id (generation, number). Its members say that they are ready (`round_meeting`); then each
streams its values to those that reduce them, and the results to all (`round_streaming`). Membership has one
authority, the coordinator, whose word is `regroup`; rounds are counted from 0 in each generation. A round
that ends without a result ends its generation here: the next one waits for a `regroup`. The survivors of a
round that cannot end normally all have its result, or none (`round_resolution`). One gap remains: a member
that reduced its slice and then stalls at the very moment, so that the others give it up, may have completed
the round, or may be given its results by one that had; such rounds are counted in `undecided_rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.peer_messages import (
    PeerAsk,
    PeerChunk,
    PeerEnded,
    PeerReady,
    PeerResolve,
    PeerResult,
    PeerState,
    PeerStateAsk,
    PeerVerdict,
    PeerWait,
)
from ...pipeline.wire.schema import Message
from ...sync_algos.base import Algorithm
from ...sync_algos.grouping import Grouping
from .coding import PeerCoding
from .context import ProtocolContext
from .recovery import RoundRecovery
from .rendezvous import Rendezvous
from .round import Ended, Excluded, Met, ReorderBuffer, RoundId, RoundPhase
from .streaming import ChunkStreaming

Handler = Callable[[int, Any, float], None]
MOST_AHEAD = 1_000_000


class AllReduceState:
    """One trainer's part of all its rounds.

    Args:
        index: this trainer among all.
        numel: elements of the replica; no round is of more.
        seed: the job's, for groupings.
        chunk_elements: of a chunk at most; the same on all trainers.
        timeout_seconds: a peer that is waited for is late after so long without progress.
        eager: whether rounds start without waiting for the others (but for the first of a generation).
        codecs: of chunks and of results.
        algorithm: whose state is handed to those that lag behind.
    """

    def __init__(
        self,
        index: int,
        *,
        numel: int,
        seed: int,
        chunk_elements: int,
        timeout_seconds: float,
        eager: bool,
        codecs: LinkCodecs,
        algorithm: Algorithm,
    ) -> None:
        # The payload of a lossy codec may be a little larger than what it encodes, where that is tiny.
        early = ReorderBuffer(4 * numel + 65_536)
        self.standing = ProtocolContext(index, timeout_seconds, PeerCoding(codecs, index), early)
        self._meeting = Rendezvous(
            self.standing, algorithm, numel=numel, chunk_elements=chunk_elements, seed=seed, eager=eager
        )
        # The result of a round, and that of the one before, which a late peer may still ask for.
        buffers = BufferPool(bytes_of(numel, arrays=2))
        self._streaming = ChunkStreaming(self.standing, chunk_elements, buffers)
        self._resolution = RoundRecovery(self.standing, self._streaming)
        self._grouping: Grouping | None = None
        self._wanted_until = 0.0
        self._handlers: dict[type[Message], Handler] = {
            PeerReady: self._meeting.on_ready,
            PeerWait: self._meeting.on_wait,
            PeerStateAsk: self._meeting.on_state_ask,
            PeerState: self._meeting.on_state,
            PeerChunk: self._streaming.on_chunk,
            PeerResult: self._streaming.on_result,
            PeerAsk: self._streaming.on_ask,
            PeerResolve: self._resolution.on_resolve,
            PeerVerdict: self._resolution.on_verdict,
            PeerEnded: self._resolution.on_ended,
        }

    @property
    def wanted(self) -> bool:
        """Whether a peer is ready for a round that this trainer has not met for yet."""
        at = self.standing
        if at.round is not None or self._grouping is not None or not at.usable:
            return False
        return any(at.seen(peer) >= at.upcoming for peer in at.others)

    @property
    def streaming(self) -> bool:
        """Whether this trainer gave its values to a round that is not over."""
        round = self.standing.round
        return round is not None and round.work is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of a round under way, of results kept for others, of early chunks and of references."""
        at = self.standing
        work = at.round.work.memory_bytes if at.round is not None and at.round.work is not None else 0
        work += self._streaming.buffers.idle_bytes
        return work + at.memory.memory_bytes + at.early.memory_bytes + at.coding.memory_bytes

    def regroup(self, generation: int, members: Sequence[int], now: float) -> None:
        """The coordinator says who takes part from now on; what it said before is ignored."""
        at = self.standing
        if generation <= at.generation:
            return
        at.generation, at.members, at.next_number = generation, tuple(sorted(members)), 0
        at.early.forget_before(generation)
        at.memory.only(at.members)
        at.coding.forget()
        if at.round is not None:
            if at.index not in at.members or at.round.work is None:
                # Nobody can complete a round that this trainer gave nothing to.
                at.end(at.round, "the group changed")
            elif at.round.phase is RoundPhase.RESOLVING:
                self._resolution.leave(at.round)
            else:
                self._resolution.begin(at.round, now)
        if self._grouping is not None:
            self._try_to_begin(now)

    def want(self, grouping: Grouping, now: float) -> None:
        """The trainer wants to meet: `Met` or `Ended` follows. Not while it streams."""
        at = self.standing
        if at.round is not None:
            # A call that was given up began this round, and the others count on this trainer.
            if at.round.phase is RoundPhase.MET:
                at.events.append(Met(at.round.id, at.round.group))
            return
        self._grouping, self._wanted_until = grouping, now + at.timeout_seconds
        self._try_to_begin(now)

    def start(self, id: RoundId, values: Float32Array, weight: float, now: float, *, exchange: bool) -> None:
        """The trainer met, and gives its values: `Result` or `Ended` follows."""
        round = self.standing.round
        if round is None or round.id != id or round.phase is not RoundPhase.MET:
            self.standing.events.append(Ended(id, "the group changed"))
        else:
            self._streaming.start(round, values, weight, now, exchange=exchange)

    def cancel(self, now: float) -> None:
        """This trainer takes part in nothing more of this generation; what waits ends, and a round that it
        gave its values to ends for all of its members alike."""
        at = self.standing
        if at.round is not None and at.round.work is not None:
            if at.round.phase is not RoundPhase.RESOLVING:
                self._resolution.begin(at.round, now)
        elif at.round is not None:
            at.end(at.round, "this trainer stops")
        elif self._grouping is not None:
            at.events.append(Ended(at.upcoming, "this trainer stops"))
        self._grouping = None
        at.break_through(at.generation)
        for peer in at.others:
            at.mail.notice(peer, PeerEnded(at.generation))

    def receive(self, peer: int, message: Message, now: float) -> None:
        """Takes a message of another trainer; raises ValueError for one that cannot be."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ValueError(f"a trainer takes no {message.KIND} from another")
        generation, number = getattr(message, "generation", 0), getattr(message, "number", 0)
        if not 0 <= generation <= self.standing.generation + MOST_AHEAD or number < 0:
            raise ValueError(f"the round {number} of generation {generation}")
        handler(peer, message, now)

    def tick(self, now: float) -> None:
        """Time has passed; to be called several times in a timeout."""
        at, round = self.standing, self.standing.round
        if round is None:
            if self._grouping is not None and now > self._wanted_until:
                self._grouping = None
                at.events.append(Ended(at.upcoming, "this trainer is not of the group"))
        elif round.phase is RoundPhase.MEETING:
            self._meeting.tick(round, now)
        elif round.phase is RoundPhase.STREAMING:
            late = self._streaming.tick(round, now)
            for peer in late:
                at.report(peer)
            if late:
                self._resolution.begin(round, now)
        elif round.phase is RoundPhase.RESOLVING:
            self._resolution.tick(round, now)

    def _try_to_begin(self, now: float) -> None:
        at = self.standing
        if at.usable and self._grouping is not None:
            grouping, self._grouping = self._grouping, None
            self._meeting.begin(grouping, now)
        elif at.generation >= 0 and at.index not in at.members:
            at.events.append(Excluded())
