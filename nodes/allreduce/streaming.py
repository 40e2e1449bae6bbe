"""The main part of a round: values go to those that reduce them, results to all, and what is lost is asked
for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool
from ...pipeline.wire.peer_messages import PeerAsk, PeerChunk, PeerEnded, PeerReady, PeerResult, PeerVerdict
from .coding import Packed, plain
from .context import ProtocolContext
from .reduce import ASKED_AT_ONCE, ReduceRound, as_positions, even_slices
from .round import PeerRound, Result, RoundId, RoundPhase, round_of

NO_POSITIONS = np.empty(0, dtype=np.int32)


class ChunkStreaming:
    """One trainer's part of it; `chunk_elements` is the same on all of them.

    Args:
        buffers: where the results go. One is in use as long as its round, `Standing.memory`, a frame that
            is still to be sent, or whoever asked for the round has anything of it.
    """

    def __init__(self, standing: ProtocolContext, chunk_elements: int, buffers: BufferPool) -> None:
        self._at = standing
        self._chunk = chunk_elements
        self.buffers = buffers

    def start(
        self, round: PeerRound, values: Float32Array, weight: float, now: float, *, exchange: bool
    ) -> None:
        """This trainer gives its values; what others gave before is taken now."""
        at = self._at
        if exchange:
            coding = plain(round.group, at.index)
        else:
            part = dict(even_slices(len(values), round.group))[at.index]
            coding = at.coding.begin(round.group, len(values), part)
        round.work = work = ReduceRound(
            round.group, at.index, values, weight, self._chunk, coding, self.buffers, exchange=exchange
        )
        round.phase = RoundPhase.STREAMING
        round.progressed_all(now)
        for position in work.outgoing():
            self._send_chunk(round, position)
        if exchange:
            for position in work.own:
                self._send_result(round.id, position, round.others)
        for peer in round.others:
            for message in at.early.take(peer, round.id):
                # Before this trainer gave anything only an exchange has results.
                if isinstance(message, PeerChunk):
                    self._take_chunk(round, peer, message, now)
                elif exchange:
                    self._take_result(round, work, peer, message, now)
        self.complete_if_whole(round)

    def on_chunk(self, peer: int, message: PeerChunk, now: float) -> None:
        """A peer's values. They may come before this trainer is there, or knows of the generation."""
        at, id = self._at, round_of(message)
        at.see(peer, id)
        round = at.current(id, peer)
        if round is not None and round.phase is RoundPhase.STREAMING:
            self._take_chunk(round, peer, message, now)
            self.complete_if_whole(round)
            return
        here = round is not None and round.phase is not RoundPhase.RESOLVING
        ahead = round is None and id.generation > at.broken_through and id >= at.upcoming
        if here or ahead:
            at.early.keep(peer, message)

    def on_result(self, peer: int, message: PeerResult, now: float) -> None:
        """A result from the peer that reduces it, or from one that completed the round."""
        at, id = self._at, round_of(message)
        round = at.current(id, peer)
        if round is None or round.work is None:
            # In an exchange a peer's values are its results, and it may be faster than this trainer.
            ahead = round is None and id.generation > at.broken_through and id >= at.upcoming
            if ahead or round is not None:
                at.see(peer, id)
                at.early.keep(peer, message)
            return
        self._take_result(round, round.work, peer, message, now)
        self.complete_if_whole(round)

    def _take_result(
        self, round: PeerRound, work: ReduceRound, peer: int, message: PeerResult, now: float
    ) -> None:
        position = message.position
        known = 0 <= position < len(work.chunks)
        if known and work.chunks[position].owner != peer and peer not in round.completers():
            raise ValueError(f"a result at position {position}, which another reduces")
        if work.take_result(position, Packed(message.base, message.elements, message.payload)):
            self._went_on(round, peer, now)

    def on_ask(self, peer: int, message: PeerAsk, now: float) -> None:  # noqa: ARG002
        """A peer lacks something of a round."""
        at, id = self._at, round_of(message)
        if len(message.chunks) + len(message.results) > 2 * ASKED_AT_ONCE:
            raise ValueError(f"{len(message.chunks)} chunks and {len(message.results)} results asked for")
        round = at.current(id, peer)
        if round is None:
            self._answer_from_memory(peer, id, message.results.tolist())
        elif round.work is None:
            at.wait(peer, id, round.blocked_by())
        elif round.phase is RoundPhase.STREAMING:
            self._answer(round, round.work, peer, message)

    def tick(self, round: PeerRound, now: float) -> list[int]:
        """Asks silent peers for what is missing; gives those that are late."""
        at, work = self._at, round.work
        assert work is not None
        waited = [peer for peer in round.others if work.missing_chunks(peer) or work.missing_results(peer)]
        for peer in waited:
            if round.may_ask(peer, now, at.policy):
                self._ask(round, work, peer)
        late = [peer for peer in waited if round.silent(peer, now) > at.timeout_seconds]
        if not late and now - round.last_progress > 2 * at.timeout_seconds:
            slow = [peer for peer in waited if peer in round.ready]
            late = [] if len(slow) < len(waited) else slow
        # Who gave all its values may only lack those of another, which is silent here too.
        guilty = [peer for peer in late if work.missing_chunks(peer)]
        return guilty or late

    def complete_if_whole(self, round: PeerRound) -> None:
        """Completes the round when all results are here, and it may complete."""
        at, work = self._at, round.work
        if work is None or not work.complete:
            return
        if round.phase is not RoundPhase.STREAMING and not round.completers():
            return
        at.complete(round)
        work.coding.complete()
        if round.phase is RoundPhase.RESOLVING:
            for peer in round.survivors:
                at.mail.notice(peer, PeerVerdict(*round.id, completed=True, reduced=True))
        at.events.append(Result(round.id, work.result))

    def _take_chunk(self, round: PeerRound, peer: int, message: PeerChunk, now: float) -> None:
        work = round.work
        assert work is not None
        round.ready.add(peer)
        packed = Packed(message.base, message.elements, message.payload)
        missing = len(work.missing_chunks(peer))
        if work.take_chunk(peer, message.position, message.weight, packed):
            self._send_result(round.id, message.position, round.others)
        if len(work.missing_chunks(peer)) < missing:
            self._went_on(round, peer, now)

    def _went_on(self, round: PeerRound, peer: int, now: float) -> None:
        round.progressed(peer, now)
        round.last_progress = now

    def _ask(self, round: PeerRound, work: ReduceRound, peer: int) -> None:
        mail = self._at.mail
        if peer not in round.ready:
            mail.notice(peer, PeerReady(*round.id, round.version))
        else:
            chunks = as_positions(work.missing_chunks(peer))
            mail.notice(peer, PeerAsk(*round.id, chunks, as_positions(work.missing_results(peer))))

    def _answer(self, round: PeerRound, work: ReduceRound, peer: int, message: PeerAsk) -> None:
        for position in message.chunks.tolist():
            if 0 <= position < len(work.chunks) and work.chunks[position].owner == peer and not work.exchange:
                self._send_chunk(round, position)
        made = [position for position in message.results.tolist() if position in work.packed]
        for position in made:
            self._send_result(round.id, position, (peer,))
        if len(made) < len(message.results):
            blocked = (other for other in round.others if work.missing_chunks(other))
            self._at.wait(peer, round.id, blocked)

    def _answer_from_memory(self, peer: int, id: RoundId, positions: list[int]) -> None:
        at = self._at
        results = at.memory.results(id)
        for position in positions:
            if position in results:
                self._send_result(id, position, (peer,))
        if at.memory.is_completed(id):
            return
        if id.generation < at.generation or id.generation <= at.broken_through:
            at.mail.notice(peer, PeerEnded(id.generation))
        else:
            at.wait(peer, id)

    def _send_chunk(self, round: PeerRound, position: int) -> None:
        work = round.work
        assert work is not None

        def make() -> PeerChunk | None:
            if self._at.round is not round or not round.streams:
                return None
            packed = work.outgoing_chunk(position)
            return PeerChunk(*round.id, position, packed.elements, work.weight, packed.base, packed.payload)

        self._at.mail.chunk(work.chunks[position].owner, (round.id, "chunk", position), make)

    def _send_result(self, id: RoundId, position: int, peers: Iterable[int]) -> None:
        def make() -> PeerResult | None:
            round = self._at.round
            if round is not None and round.id == id:
                # Once it was promised not to complete the round, nobody else may complete by this trainer.
                packed = round.work.packed.get(position) if round.work and round.streams else None
            else:
                packed = self._at.memory.results(id).get(position)
            if packed is None:
                return None
            return PeerResult(*id, position, packed.elements, packed.base, packed.payload)

        for peer in peers:
            self._at.mail.chunk(peer, (id, "result", position), make)
