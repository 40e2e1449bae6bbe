"""The all-reduce protocol of one trainer as a state machine without I/O or clock (contracts 6 and 9).

What happens comes in (`regroup`, `want`, `start`, `receive`, `tick`); what is to be sent is taken from
`context.send_queue`, what has happened from `context.events`.

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
        reorder_buffer = ReorderBuffer(4 * numel + 65_536)
        self.context = ProtocolContext(index, timeout_seconds, PeerCoding(codecs, index), reorder_buffer)
        self._rendezvous = Rendezvous(
            self.context, algorithm, numel=numel, chunk_elements=chunk_elements, seed=seed, eager=eager
        )
        # The result of a round, and that of the one before, which a late peer may still ask for.
        buffers = BufferPool(bytes_of(numel, arrays=2))
        self._streaming = ChunkStreaming(self.context, chunk_elements, buffers)
        self._recovery = RoundRecovery(self.context, self._streaming)
        self._grouping: Grouping | None = None
        self._wanted_until = 0.0
        self._handlers: dict[type[Message], Handler] = {
            PeerReady: self._rendezvous.on_ready,
            PeerWait: self._rendezvous.on_wait,
            PeerStateAsk: self._rendezvous.on_state_ask,
            PeerState: self._rendezvous.on_state,
            PeerChunk: self._streaming.on_chunk,
            PeerResult: self._streaming.on_result,
            PeerAsk: self._streaming.on_ask,
            PeerResolve: self._recovery.on_resolve,
            PeerVerdict: self._recovery.on_verdict,
            PeerEnded: self._recovery.on_ended,
        }

    @property
    def wanted(self) -> bool:
        """Whether a peer is ready for a round that this trainer has not met for yet."""
        context = self.context
        if context.current_round is not None or self._grouping is not None or not context.usable:
            return False
        return any(context.latest_ready(peer) >= context.upcoming for peer in context.others)

    @property
    def streaming(self) -> bool:
        """Whether this trainer gave its values to a round that is not over."""
        peer_round = self.context.current_round
        return peer_round is not None and peer_round.work is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of a round under way, of results kept for others, of early chunks and of references."""
        context = self.context
        work = (
            context.current_round.work.memory_bytes
            if context.current_round is not None and context.current_round.work is not None
            else 0
        )
        work += self._streaming.buffers.idle_bytes
        return (
            work
            + context.history.memory_bytes
            + context.reorder_buffer.memory_bytes
            + context.coding.memory_bytes
        )

    def regroup(self, generation: int, members: Sequence[int], now: float) -> None:
        """The coordinator says who takes part from now on; what it said before is ignored."""
        context = self.context
        if generation <= context.generation:
            return
        context.generation, context.members, context.next_number = generation, tuple(sorted(members)), 0
        context.reorder_buffer.forget_before(generation)
        context.history.retain_members(context.members)
        context.coding.forget()
        if context.current_round is not None:
            if context.index not in context.members or context.current_round.work is None:
                # Nobody can complete a round that this trainer gave nothing to.
                context.end(context.current_round, "the group changed")
            elif context.current_round.phase is RoundPhase.RESOLVING:
                self._recovery.leave(context.current_round)
            else:
                self._recovery.begin(context.current_round, now)
        if self._grouping is not None:
            self._try_to_begin(now)

    def want(self, grouping: Grouping, now: float) -> None:
        """The trainer wants to meet: `Met` or `Ended` follows. Not while it streams."""
        context = self.context
        if context.current_round is not None:
            # A call that was given up began this round, and the others count on this trainer.
            if context.current_round.phase is RoundPhase.MET:
                context.events.append(Met(context.current_round.round_id, context.current_round.group))
            return
        self._grouping, self._wanted_until = grouping, now + context.timeout_seconds
        self._try_to_begin(now)

    def start(
        self, round_id: RoundId, values: Float32Array, weight: float, now: float, *, exchange: bool
    ) -> None:
        """The trainer met, and gives its values: `Result` or `Ended` follows."""
        peer_round = self.context.current_round
        if peer_round is None or peer_round.round_id != round_id or peer_round.phase is not RoundPhase.MET:
            self.context.events.append(Ended(round_id, "the group changed"))
        else:
            self._streaming.start(peer_round, values, weight, now, exchange=exchange)

    def cancel(self, now: float) -> None:
        """This trainer takes part in nothing more of this generation; what waits ends, and a round that it
        gave its values to ends for all of its members alike."""
        context = self.context
        if context.current_round is not None and context.current_round.work is not None:
            if context.current_round.phase is not RoundPhase.RESOLVING:
                self._recovery.begin(context.current_round, now)
        elif context.current_round is not None:
            context.end(context.current_round, "this trainer stops")
        elif self._grouping is not None:
            context.events.append(Ended(context.upcoming, "this trainer stops"))
        self._grouping = None
        context.abandon_generation(context.generation)
        for peer in context.others:
            context.send_queue.notice(peer, PeerEnded(context.generation))

    def receive(self, peer: int, message: Message, now: float) -> None:
        """Takes a message of another trainer; raises ValueError for one that cannot be."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ValueError(f"a trainer takes no {message.KIND} from another")
        generation, number = getattr(message, "generation", 0), getattr(message, "number", 0)
        if not 0 <= generation <= self.context.generation + MOST_AHEAD or number < 0:
            raise ValueError(f"the round {number} of generation {generation}")
        handler(peer, message, now)

    def tick(self, now: float) -> None:
        """Time has passed; to be called several times in a timeout."""
        context, peer_round = self.context, self.context.current_round
        if peer_round is None:
            if self._grouping is not None and now > self._wanted_until:
                self._grouping = None
                context.events.append(Ended(context.upcoming, "this trainer is not of the group"))
        elif peer_round.phase is RoundPhase.MEETING:
            self._rendezvous.tick(peer_round, now)
        elif peer_round.phase is RoundPhase.STREAMING:
            late = self._streaming.tick(peer_round, now)
            for peer in late:
                context.report_late(peer)
            if late:
                self._recovery.begin(peer_round, now)
        elif peer_round.phase is RoundPhase.RESOLVING:
            self._recovery.tick(peer_round, now)

    def _try_to_begin(self, now: float) -> None:
        context = self.context
        if context.usable and self._grouping is not None:
            grouping, self._grouping = self._grouping, None
            self._rendezvous.begin(grouping, now)
        elif context.generation >= 0 and context.index not in context.members:
            context.events.append(Excluded())
