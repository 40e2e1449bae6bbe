"""Streaming of a round: values to the members that reduce, results to all.

Missing chunks are requested again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool
from ...pipeline.wire.peer_messages import (
    PeerChunk,
    PeerEnded,
    PeerReady,
    PeerRequest,
    PeerResult,
    PeerVerdict,
)
from .coding import EncodedChunk
from .context import ProtocolContext
from .reduce import MOST_REQUESTED_POSITIONS, ReduceRound, even_slices, position_array
from .round import PeerRound, Result, RoundId, RoundPhase, round_of

NO_POSITIONS = np.empty(0, dtype=np.int32)


class ChunkStreaming:
    """One trainer's part of the streaming.

    Args:
        chunk_elements: the most elements of a chunk; the same on all trainers.
        buffers: the pool of result buffers. A buffer is in use while its round, the history, a frame that
            is still to be sent, or the caller of the round refers to it.
    """

    def __init__(self, context: ProtocolContext, chunk_elements: int, buffers: BufferPool) -> None:
        self._context = context
        self._chunk = chunk_elements
        self.buffers = buffers

    def start(self, peer_round: PeerRound, values: Float32Array, weight: float, now: float) -> None:
        """Start a round with this trainer's values.

        Accepts the chunks that came early.
        """
        context = self._context
        part = dict(even_slices(len(values), peer_round.group))[context.index]
        coding = context.coding.begin(peer_round.group, len(values), part)
        peer_round.work = work = ReduceRound(
            peer_round.group, context.index, values, weight, self._chunk, coding, self.buffers
        )
        peer_round.phase = RoundPhase.STREAMING
        peer_round.restart_timers(now)
        for position in work.outgoing():
            self._send_chunk(peer_round, position)
        for peer in peer_round.others:
            for message in context.reorder_buffer.take(peer, peer_round.round_id):
                self._take_chunk(peer_round, peer, message, now)
        self.complete_if_whole(peer_round)

    def on_chunk(self, peer: int, message: PeerChunk, now: float) -> None:
        """Accept a peer's values, even before this trainer's round or generation begins."""
        context, round_id = self._context, round_of(message)
        context.record_ready(peer, round_id)
        peer_round = context.find_round(round_id, peer)
        if peer_round is not None and peer_round.phase is RoundPhase.STREAMING:
            self._take_chunk(peer_round, peer, message, now)
            self.complete_if_whole(peer_round)
            return
        here = peer_round is not None and peer_round.phase is not RoundPhase.RESOLVING
        ahead = (
            peer_round is None
            and round_id.generation > context.abandoned_generation
            and round_id >= context.upcoming
        )
        if here or ahead:
            context.reorder_buffer.add(peer, message)

    def on_result(self, peer: int, message: PeerResult, now: float) -> None:
        """Accept a result from its reducer.

        A peer that completed the round may send it, too.
        """
        peer_round = self._context.find_round(round_of(message), peer)
        if peer_round is None or peer_round.work is None:
            return
        work, position = peer_round.work, message.position
        known = 0 <= position < len(work.chunks)
        if known and work.chunks[position].owner != peer and peer not in peer_round.completers():
            raise ValueError(f"the result at position {position} is not of the trainer that reduces it")
        if work.take_result(position, EncodedChunk(message.base, message.elements, message.payload)):
            self._record_progress(peer_round, peer, now)
        self.complete_if_whole(peer_round)

    def on_request(self, peer: int, message: PeerRequest, now: float) -> None:  # noqa: ARG002
        """Answer a peer that requests missing chunks or results of a round."""
        context, round_id = self._context, round_of(message)
        if len(message.chunks) + len(message.results) > 2 * MOST_REQUESTED_POSITIONS:
            raise ValueError(
                f"{len(message.chunks)} chunks and {len(message.results)} results requested; "
                f"at most {2 * MOST_REQUESTED_POSITIONS} together are allowed"
            )
        peer_round = context.find_round(round_id, peer)
        if peer_round is None:
            self._reply_from_memory(peer, round_id, message.results.tolist())
        elif peer_round.work is None:
            context.wait(peer, round_id, peer_round.blocked_by())
        elif peer_round.phase is RoundPhase.STREAMING:
            self._reply(peer_round, peer_round.work, peer, message)

    def tick(self, peer_round: PeerRound, now: float) -> list[int]:
        """Request missing chunks from silent peers; return the peers that are late."""
        context, work = self._context, peer_round.work
        assert work is not None
        waited = [
            peer for peer in peer_round.others if work.missing_chunks(peer) or work.missing_results(peer)
        ]
        for peer in waited:
            if peer_round.may_request(peer, now, context.policy):
                self._request_missing(peer_round, work, peer)
        late = [peer for peer in waited if peer_round.silent(peer, now) > context.timeout_seconds]
        if not late and now - peer_round.last_progress > 2 * context.timeout_seconds:
            slow = [peer for peer in waited if peer in peer_round.ready]
            late = [] if len(slow) < len(waited) else slow
        # A peer that gave all its values may itself wait for another, which is silent here too.
        guilty = [peer for peer in late if work.missing_chunks(peer)]
        return guilty or late

    def complete_if_whole(self, peer_round: PeerRound) -> None:
        """Complete the round if all results are here and no promise forbids it."""
        context, work = self._context, peer_round.work
        if work is None or not work.complete:
            return
        if peer_round.phase is not RoundPhase.STREAMING and not peer_round.completers():
            return
        context.complete(peer_round)
        work.coding.complete()
        if peer_round.phase is RoundPhase.RESOLVING:
            for peer in peer_round.survivors:
                context.send_queue.notice(
                    peer, PeerVerdict(*peer_round.round_id, completed=True, reduced=True)
                )
        context.events.append(Result(peer_round.round_id, work.result))

    def _take_chunk(self, peer_round: PeerRound, peer: int, message: PeerChunk, now: float) -> None:
        work = peer_round.work
        assert work is not None
        peer_round.ready.add(peer)
        packed = EncodedChunk(message.base, message.elements, message.payload)
        missing = len(work.missing_chunks(peer))
        if work.take_chunk(peer, message.position, message.weight, packed):
            self._send_result(peer_round.round_id, message.position, peer_round.others)
        if len(work.missing_chunks(peer)) < missing:
            self._record_progress(peer_round, peer, now)

    def _record_progress(self, peer_round: PeerRound, peer: int, now: float) -> None:
        peer_round.record_progress(peer, now)
        peer_round.last_progress = now

    def _request_missing(self, peer_round: PeerRound, work: ReduceRound, peer: int) -> None:
        send_queue = self._context.send_queue
        if peer not in peer_round.ready:
            send_queue.notice(peer, PeerReady(*peer_round.round_id, peer_round.version))
        else:
            chunks = position_array(work.missing_chunks(peer))
            send_queue.notice(
                peer, PeerRequest(*peer_round.round_id, chunks, position_array(work.missing_results(peer)))
            )

    def _reply(self, peer_round: PeerRound, work: ReduceRound, peer: int, message: PeerRequest) -> None:
        for position in message.chunks.tolist():
            if 0 <= position < len(work.chunks) and work.chunks[position].owner == peer:
                self._send_chunk(peer_round, position)
        made = [position for position in message.results.tolist() if position in work.packed]
        for position in made:
            self._send_result(peer_round.round_id, position, (peer,))
        if len(made) < len(message.results):
            blocked = (other for other in peer_round.others if work.missing_chunks(other))
            self._context.wait(peer, peer_round.round_id, blocked)

    def _reply_from_memory(self, peer: int, round_id: RoundId, positions: list[int]) -> None:
        context = self._context
        results = context.history.results(round_id)
        for position in positions:
            if position in results:
                self._send_result(round_id, position, (peer,))
        if context.history.is_completed(round_id):
            return
        if round_id.generation < context.generation or round_id.generation <= context.abandoned_generation:
            context.send_queue.notice(peer, PeerEnded(round_id.generation))
        else:
            context.wait(peer, round_id)

    def _send_chunk(self, peer_round: PeerRound, position: int) -> None:
        work = peer_round.work
        assert work is not None

        def make() -> PeerChunk | None:
            if self._context.current_round is not peer_round or not peer_round.streams:
                return None
            packed = work.outgoing_chunk(position)
            return PeerChunk(
                *peer_round.round_id, position, packed.elements, work.weight, packed.base, packed.payload
            )

        self._context.send_queue.chunk(
            work.chunks[position].owner, (peer_round.round_id, "chunk", position), make
        )

    def _send_result(self, round_id: RoundId, position: int, peers: Iterable[int]) -> None:
        def make() -> PeerResult | None:
            peer_round = self._context.current_round
            if peer_round is not None and peer_round.round_id == round_id:
                # After the promise not to complete the round, this trainer must not help others complete it.
                packed = (
                    peer_round.work.packed.get(position) if peer_round.work and peer_round.streams else None
                )
            else:
                packed = self._context.history.results(round_id).get(position)
            if packed is None:
                return None
            return PeerResult(*round_id, position, packed.elements, packed.base, packed.payload)

        for peer in peers:
            self._context.send_queue.chunk(peer, (round_id, "result", position), make)
