"""How a round ends that cannot end normally: the survivors all get its result, or none does.

Each member asks the others that survive whether they completed the round. One that did says so and gives its
results; one that did not promises never to complete it any more, unless one that had gives it the results.
Nobody can have completed the round unless every member had reduced its slice, so one that had not decides it
at once.
"""

from __future__ import annotations

from ...pipeline.wire.peer_messages import PeerAsk, PeerEnded, PeerResolve, PeerVerdict
from .context import ProtocolContext
from .reduce import as_positions
from .round import PeerRound, RoundPhase, round_of
from .streaming import NO_POSITIONS, ChunkStreaming


class RoundRecovery:
    """One trainer's part of it."""

    def __init__(self, standing: ProtocolContext, streaming: ChunkStreaming) -> None:
        self._at = standing
        self._streaming = streaming

    def begin(self, round: PeerRound, now: float) -> None:
        """The round under way, which this trainer gave its values to, cannot end normally."""
        at = self._at
        round.phase = RoundPhase.RESOLVING
        round.resolving_since = now
        round.progressed_all(now)
        round.survivors = set(round.others) & set(at.members)
        at.break_through(round.id.generation)
        at.mail.drop(round.id)
        for peer in round.survivors:
            at.mail.notice(peer, PeerResolve(*round.id))
        self.decide(round)

    def leave(self, round: PeerRound) -> None:
        """Members are gone: nothing is expected of them any more."""
        round.survivors &= set(self._at.members)
        self.decide(round)

    def decide(self, round: PeerRound) -> None:
        """Ends the round if what the others said, and what is here, allows to."""
        at, work = self._at, round.work
        assert work is not None
        if completers := round.completers():
            if missing := work.missing_results():
                ask = PeerAsk(*round.id, NO_POSITIONS, as_positions(missing))
                at.mail.notice(completers[0], ask)
            self._streaming.complete_if_whole(round)
        elif not work.reduced or any(not verdict.reduced for verdict in round.verdicts.values()):
            at.end(round, "a member is lost")
        elif round.survivors <= round.verdicts.keys():
            self._give_up(round)

    def on_resolve(self, peer: int, message: PeerResolve, now: float) -> None:
        """A peer asks how a round ended here."""
        at, id = self._at, round_of(message)
        round = at.current(id, peer)
        completed, reduced = at.memory.is_completed(id), True
        if round is not None and round.work is not None:
            reduced = round.work.reduced
            if round.phase is RoundPhase.STREAMING:
                self.begin(round, now)
        elif round is not None:
            reduced = False
            at.end(round, f"trainer {peer} gave the round up")
        elif at.memory.is_ended(id):
            reduced = at.memory.had_reduced(id)
        elif id >= at.upcoming:
            # This trainer gave that round nothing, and will not.
            at.break_through(id.generation)
            reduced = False
        elif not completed:
            reduced = at.memory.had_reduced(id)
        at.mail.notice(peer, PeerVerdict(*id, completed=completed, reduced=reduced))

    def on_verdict(self, peer: int, message: PeerVerdict, now: float) -> None:
        """A peer says how a round ended there."""
        round = self._at.current(round_of(message), peer)
        if round is not None and round.phase is RoundPhase.RESOLVING:
            round.progressed(peer, now)
            round.verdicts[peer] = message
            self.decide(round)

    def on_ended(self, peer: int, message: PeerEnded, now: float) -> None:
        """A peer takes part in nothing more of a generation."""
        at, round = self._at, self._at.round
        if message.generation > at.generation:
            return
        if peer in at.members:
            at.break_through(message.generation)
        if round is None or round.id.generation != message.generation or peer not in round.others:
            return
        if round.phase is RoundPhase.STREAMING:
            self.begin(round, now)
        elif round.phase is not RoundPhase.RESOLVING:
            at.end(round, f"trainer {peer} takes part no more")

    def tick(self, round: PeerRound, now: float) -> None:
        """Asks again, and gives up after the timeout."""
        at, work = self._at, round.work
        assert work is not None
        silent = [peer for peer in round.survivors if peer not in round.verdicts]
        if now - round.resolving_since > at.timeout_seconds:
            for peer in silent:
                at.report(peer)
            self._give_up(round)
            return
        for peer in silent:
            if round.may_ask(peer, now, at.policy):
                at.mail.notice(peer, PeerResolve(*round.id))
        for peer in round.completers()[:1]:
            if round.may_ask(peer, now, at.policy):
                self.decide(round)

    def _give_up(self, round: PeerRound) -> None:
        # A member that promised nothing may have completed the round, though it is gone, or cannot answer.
        if len(round.verdicts) < len(round.others) or round.completers():
            self._at.undecided_rounds += 1
        self._at.end(round, "a member is lost")
