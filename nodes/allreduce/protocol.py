"""The all-reduce protocol of one trainer: a state machine without I/O or clock.

Inputs are the methods `regroup`, `want`, `start`, `receive` and `tick`. Outputs are two queues: messages to
send in `context.send_queue`, and events in `context.events`.

A round has the id (generation, number). First its members report that they are ready (`rendezvous`). Then
each sends its values to the members that reduce them, and its results to all (`streaming`). The coordinator
alone decides on membership, by `regroup`; rounds are counted from 0 in each generation. A round that ends
without a result ends its generation on this trainer: the next round waits for a `regroup`. If a round cannot
end normally, either all survivors get its result or none does (`recovery`). One gap remains: a member may
reduce its slice and then stall just as the others give it up. This member may have completed the round, or
may get the results from a member that had. Such rounds are counted in `undecided_rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.peer_messages import (
    PeerChunk,
    PeerEnded,
    PeerReady,
    PeerRequest,
    PeerResolve,
    PeerResult,
    PeerState,
    PeerStateRequest,
    PeerVerdict,
    PeerWait,
)
from ...pipeline.wire.schema import Message
from ...sync_algos.base import Algorithm
from ...sync_algos.contract.grouping import Grouping
from .coding import PeerCoding
from .context import ProtocolContext
from .recovery import RoundRecovery
from .rendezvous import Rendezvous
from .round import Ended, Excluded, Met, ReorderBuffer, RoundId, RoundPhase
from .streaming import ChunkStreaming

HandleMessage = Callable[[int, Any, float], None]
MOST_AHEAD = 1_000_000


class AllReduceState:
    """The protocol state of one trainer over all its rounds.

    Args:
        index: this trainer's index among all trainers.
        numel: elements of the replica, and at most of a round.
        seed: the job's seed, for groupings.
        chunk_elements: the most elements of a chunk; the same on all trainers.
        timeout_seconds: an awaited peer is late after so long without progress.
        eager: whether rounds start without waiting for the others, except the first of a generation.
        codecs: codecs of chunks and of results.
        algorithm: the algorithm whose state is sent to trainers that lag behind.
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
        # For tiny inputs the payload of a lossy codec may be a little larger than the input.
        reorder_buffer = ReorderBuffer(4 * numel + 65_536)
        self.context = ProtocolContext(index, timeout_seconds, PeerCoding(codecs, index), reorder_buffer)
        self._rendezvous = Rendezvous(
            self.context, algorithm, numel=numel, chunk_elements=chunk_elements, seed=seed, eager=eager
        )
        # For the result of a round, and of the round before, which a late peer may still request.
        buffers = BufferPool(bytes_of(numel, arrays=2))
        self._streaming = ChunkStreaming(self.context, chunk_elements, buffers)
        self._recovery = RoundRecovery(self.context, self._streaming)
        self._grouping: Grouping | None = None
        self._wanted_until = 0.0
        self._handlers: dict[type[Message], HandleMessage] = {
            PeerReady: self._rendezvous.on_ready,
            PeerWait: self._rendezvous.on_wait,
            PeerStateRequest: self._rendezvous.on_state_request,
            PeerState: self._rendezvous.on_state,
            PeerChunk: self._streaming.on_chunk,
            PeerResult: self._streaming.on_result,
            PeerRequest: self._streaming.on_request,
            PeerResolve: self._recovery.on_resolve,
            PeerVerdict: self._recovery.on_verdict,
            PeerEnded: self._recovery.on_ended,
        }

    @property
    def awaited(self) -> bool:
        """Whether a peer is ready for a round not begun here."""
        context = self.context
        if context.current_round is not None or self._grouping is not None or not context.usable:
            return False
        return any(context.latest_ready(peer) >= context.upcoming for peer in context.others)

    @property
    def streaming(self) -> bool:
        """Whether this trainer gave its values to a round that has not ended."""
        peer_round = self.context.current_round
        return peer_round is not None and peer_round.work is not None

    def regroup(self, generation: int, members: Sequence[int], now: float) -> None:
        """Set the members from the coordinator's decision; an older generation is ignored.

        A trainer that is not in the first one joined the running job.
        """
        context = self.context
        if generation <= context.generation:
            return
        if context.generation < 0 and context.index not in members:
            self._rendezvous.join_late()
        context.generation, context.members, context.next_number = generation, tuple(sorted(members)), 0
        context.reorder_buffer.forget_before(generation)
        context.history.retain_members(context.members)
        context.coding.forget()
        if context.current_round is not None:
            if context.index not in context.members or context.current_round.work is None:
                # Nobody can complete a round without this trainer's values.
                context.end(context.current_round, "the group changed")
            elif context.current_round.phase is RoundPhase.RESOLVING:
                self._recovery.leave(context.current_round)
            else:
                self._recovery.begin(context.current_round, now)
        if self._grouping is not None:
            self._try_to_begin(now)

    def want(self, grouping: Grouping, now: float) -> None:
        """Request the next round: `Met` or `Ended` follows.

        Do not call it while a round streams.
        """
        context = self.context
        if context.current_round is not None:
            # A cancelled call began this round, and the others already wait for this trainer.
            if context.current_round.phase is RoundPhase.MET:
                context.events.append(Met(context.current_round.round_id, context.current_round.group))
            return
        self._grouping, self._wanted_until = grouping, now + context.timeout_seconds
        self._try_to_begin(now)

    def start(self, round_id: RoundId, values: Float32Array, weight: float, now: float) -> None:
        """Start a round that was met, with this trainer's values.

        `Result` or `Ended` follows.
        """
        peer_round = self.context.current_round
        if peer_round is None or peer_round.round_id != round_id or peer_round.phase is not RoundPhase.MET:
            self.context.events.append(Ended(round_id, "the group changed"))
        else:
            self._streaming.start(peer_round, values, weight, now)

    def cancel(self, now: float) -> None:
        """Leave this generation.

        A pending request ends. A round that has this trainer's values ends alike for all of its members.
        """
        context = self.context
        if context.current_round is not None and context.current_round.work is not None:
            if context.current_round.phase is not RoundPhase.RESOLVING:
                self._recovery.begin(context.current_round, now)
        elif context.current_round is not None:
            context.end(context.current_round, "this trainer leaves the group")
        elif self._grouping is not None:
            context.events.append(Ended(context.upcoming, "this trainer leaves the group"))
        self._grouping = None
        context.abandon_generation(context.generation)
        for peer in context.others:
            context.send_queue.notice(peer, PeerEnded(context.generation))

    def receive(self, peer: int, message: Message, now: float) -> None:
        """Handle a message of another trainer; raises ValueError for an invalid one."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ValueError(f"a trainer does not accept a {message.KIND} from another trainer")
        generation, number = getattr(message, "generation", 0), getattr(message, "number", 0)
        if not 0 <= generation <= self.context.generation + MOST_AHEAD or number < 0:
            raise ValueError(f"round {number} of generation {generation} is out of range")
        handler(peer, message, now)

    def tick(self, now: float) -> None:
        """Advance the clock; call it several times per timeout."""
        context, peer_round = self.context, self.context.current_round
        if peer_round is None:
            if self._grouping is not None and now > self._wanted_until:
                self._grouping = None
                context.events.append(Ended(context.upcoming, "this trainer is not in the group"))
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
