"""Recovery of a round that cannot end normally.

Either all survivors get its result, or none does. Each member asks the surviving others whether they
completed the round. A member that completed it says so and sends its results. A member that did not promises
not to complete the round, unless one that completed it sends the results. No member can have completed the
round unless every member had reduced its slice, so a single member that had not reduced its slice decides at
once.
"""

from __future__ import annotations

from ...pipeline.wire.peer_messages import PeerEnded, PeerRequest, PeerResolve, PeerVerdict
from .context import ProtocolContext
from .reduce import position_array
from .round import PeerRound, RoundPhase, round_of
from .streaming import NO_POSITIONS, ChunkStreaming


class RoundRecovery:
    """One trainer's part of the recovery of its current round."""

    def __init__(self, context: ProtocolContext, streaming: ChunkStreaming) -> None:
        self._context = context
        self._streaming = streaming

    def begin(self, peer_round: PeerRound, now: float) -> None:
        """Begin recovery of the current round, which has this trainer's values."""
        context = self._context
        peer_round.phase = RoundPhase.RESOLVING
        peer_round.resolving_since = now
        peer_round.restart_timers(now)
        peer_round.survivors = set(peer_round.others) & set(context.members)
        context.abandon_generation(peer_round.round_id.generation)
        context.send_queue.drop(peer_round.round_id)
        for peer in peer_round.survivors:
            context.send_queue.notice(peer, PeerResolve(*peer_round.round_id))
        self.decide(peer_round)

    def leave(self, peer_round: PeerRound) -> None:
        """Drop members that have left the group from the survivors."""
        peer_round.survivors &= set(self._context.members)
        self.decide(peer_round)

    def decide(self, peer_round: PeerRound) -> None:
        """End the round if the verdicts and the local state decide it."""
        context, work = self._context, peer_round.work
        assert work is not None
        if completers := peer_round.completers():
            if missing := work.missing_results():
                request = PeerRequest(*peer_round.round_id, NO_POSITIONS, position_array(missing))
                context.send_queue.notice(completers[0], request)
            self._streaming.complete_if_whole(peer_round)
        elif not work.reduced or any(not verdict.reduced for verdict in peer_round.verdicts.values()):
            context.end(peer_round, "a member is lost")
        elif peer_round.survivors <= peer_round.verdicts.keys():
            self._give_up(peer_round)

    def on_resolve(self, peer: int, message: PeerResolve, now: float) -> None:
        """Answer a peer that asks how a round ended here."""
        context, round_id = self._context, round_of(message)
        peer_round = context.find_round(round_id, peer)
        completed, reduced = context.history.is_completed(round_id), True
        if peer_round is not None and peer_round.work is not None:
            reduced = peer_round.work.reduced
            if peer_round.phase is RoundPhase.STREAMING:
                self.begin(peer_round, now)
        elif peer_round is not None:
            reduced = False
            context.end(peer_round, f"trainer {peer} gave up the round")
        elif context.history.is_ended(round_id):
            reduced = context.history.had_reduced(round_id)
        elif round_id >= context.upcoming:
            # This trainer gave no values to that round, and will not.
            context.abandon_generation(round_id.generation)
            reduced = False
        elif not completed:
            reduced = context.history.had_reduced(round_id)
        context.send_queue.notice(peer, PeerVerdict(*round_id, completed=completed, reduced=reduced))

    def on_verdict(self, peer: int, message: PeerVerdict, now: float) -> None:
        """Record how a round ended at a peer."""
        peer_round = self._context.find_round(round_of(message), peer)
        if peer_round is not None and peer_round.phase is RoundPhase.RESOLVING:
            peer_round.record_progress(peer, now)
            peer_round.verdicts[peer] = message
            self.decide(peer_round)

    def on_ended(self, peer: int, message: PeerEnded, now: float) -> None:
        """Handle a peer that left a generation."""
        context, peer_round = self._context, self._context.current_round
        if message.generation > context.generation:
            return
        if peer in context.members:
            context.abandon_generation(message.generation)
        if (
            peer_round is None
            or peer_round.round_id.generation != message.generation
            or peer not in peer_round.others
        ):
            return
        if peer_round.phase is RoundPhase.STREAMING:
            self.begin(peer_round, now)
        elif peer_round.phase is not RoundPhase.RESOLVING:
            context.end(peer_round, f"trainer {peer} left the group")

    def tick(self, peer_round: PeerRound, now: float) -> None:
        """Repeat unanswered requests, and give up after the timeout."""
        context, work = self._context, peer_round.work
        assert work is not None
        silent = [peer for peer in peer_round.survivors if peer not in peer_round.verdicts]
        if now - peer_round.resolving_since > context.timeout_seconds:
            for peer in silent:
                context.report_late(peer)
            self._give_up(peer_round)
            return
        for peer in silent:
            if peer_round.may_request(peer, now, context.policy):
                context.send_queue.notice(peer, PeerResolve(*peer_round.round_id))
        for peer in peer_round.completers()[:1]:
            if peer_round.may_request(peer, now, context.policy):
                self.decide(peer_round)

    def _give_up(self, peer_round: PeerRound) -> None:
        # A member without a promise may have completed the round, even if it is gone or cannot answer.
        if len(peer_round.verdicts) < len(peer_round.others) or peer_round.completers():
            self._context.undecided_rounds += 1
        self._context.end(peer_round, "a member is lost")
