"""The first part of a round: everyone of the group says that it is ready, and whoever lags behind adopts the
algorithm's state."""

from __future__ import annotations

from ...pipeline.wire.peer_messages import PeerEnded, PeerReady, PeerState, PeerStateAsk, PeerWait
from ...sync_algos.base import Algorithm
from ...sync_algos.grouping import Grouping
from .context import ProtocolContext
from .round import Met, PeerRound, RoundPhase, round_of
from .state_transfer import StateReceiver, StateSender


class Rendezvous:
    """One trainer's part of it.

    Args:
        numel: elements of each tensor of the algorithm's state; sent in chunks of `chunk_elements`.
        eager: whether a round starts without waiting for the others; the first of a generation never does.
    """

    def __init__(
        self,
        standing: ProtocolContext,
        algorithm: Algorithm,
        *,
        numel: int,
        chunk_elements: int,
        seed: int,
        eager: bool,
    ) -> None:
        self._at = standing
        self._algorithm = algorithm
        self._donor = StateSender(algorithm, chunk_elements)
        self._numel, self._chunk, self._seed, self._eager = numel, chunk_elements, seed, eager

    def begin(self, grouping: Grouping, now: float) -> None:
        """The next round of this generation; `Met` follows, or `Ended`."""
        at = self._at
        groups = grouping(at.members, at.next_number, self._seed)
        group = next((tuple(sorted(group)) for group in groups if at.index in group), ())
        if not group or not set(group) <= set(at.members):
            raise ValueError(f"the grouping puts trainer {at.index} of {at.members} into {groups}")
        round = PeerRound(at.upcoming, group, at.index, self._donor.version, now)
        at.round = round
        for peer in round.others:
            at.mail.notice(peer, self._ready(round))
            self._note(round, peer)
        if self._eager and round.id.number > 0:
            self._met(round)
        else:
            self._check(round, now)

    def on_ready(self, peer: int, message: PeerReady, now: float) -> None:
        """A peer is ready for a round, perhaps not for the first time that it says so."""
        at, id = self._at, round_of(message)
        round = at.current(id, peer)
        if round is None and id < at.seen(peer):
            return
        before = at.ready.get(peer)
        known = before is not None and (round_of(before), before.version) == (id, message.version)
        # An answer is not answered, or there would be no end of it.
        repeated = known and not message.heard
        at.ready[peer] = message
        at.see(peer, id)
        if id.generation < at.generation or id.generation <= at.broken_through:
            at.mail.notice(peer, PeerEnded(id.generation))
        elif round is not None:
            if repeated:
                at.mail.notice(peer, PeerReady(*id, round.version, heard=True))
            elif not known:
                round.progressed(peer, now)
            self._note(round, peer)
            self._check(round, now)
        elif at.memory.is_completed(id) and not message.heard:
            # Without this peer's values: there are none in a round of nothing.
            at.mail.notice(peer, PeerReady(*id, message.version, heard=True))
        elif repeated and id.generation == at.generation:
            at.wait(peer, id)

    def on_wait(self, peer: int, message: PeerWait, now: float) -> None:
        """A peer is alive. Before it is ready it may take its time; afterwards it has to go on, unless
        others keep it."""
        round = self._at.current(round_of(message), peer)
        if round is None:
            return
        if len(message.blocked_by) > len(round.group):
            raise ValueError(f"blocked by {len(message.blocked_by)} of a group of {len(round.group)}")
        kept = set(message.blocked_by.tolist()) - {self._at.index}
        if peer not in round.ready or kept:
            round.progressed(peer, now)

    def on_state_ask(self, peer: int, message: PeerStateAsk, now: float) -> None:  # noqa: ARG002
        """A peer lags behind. The first round cannot complete, and so move the state, while it still asks."""
        at = self._at
        if at.round is None or at.round.id != (message.generation, 0) or at.mail.has_chunks(peer):
            return
        for key, make in self._donor.chunks(message):
            at.mail.chunk(peer, (at.round.id, *key), make)

    def on_state(self, peer: int, message: PeerState, now: float) -> None:
        """A chunk of the state that this trainer adopts."""
        round = self._at.round
        if round is None or round.adoption is None or round.id.generation != message.generation:
            return
        if peer == round.adoption.donor and round.adoption.take(message):
            round.progressed(peer, now)
            if round.adoption.complete:
                self._adopt(round.adoption)
                round.adoption = None
                self._met(round)

    def tick(self, round: PeerRound, now: float) -> None:
        """Asks silent peers again, and gives up late ones."""
        at = self._at
        waited = [peer for peer in round.others if peer not in round.ready]
        if round.adoption is not None:
            waited = [round.adoption.donor]
        late = [peer for peer in waited if round.silent(peer, now) > at.timeout_seconds]
        for peer in late:
            at.report(peer)
        if late:
            # Nobody can complete a round that this trainer gave nothing to.
            at.end(round, f"trainer {late[0]} was not there within {at.timeout_seconds:g} s")
            return
        for peer in waited:
            if round.may_ask(peer, now, at.policy):
                self.ask_again(round, peer)

    def ask_again(self, round: PeerRound, peer: int) -> None:
        """Says once more what a peer does not seem to have heard."""
        message = round.adoption.ask() if round.adoption is not None else self._ready(round)
        self._at.mail.notice(peer, message)

    def _ready(self, round: PeerRound) -> PeerReady:
        return PeerReady(*round.id, round.version)

    def _note(self, round: PeerRound, peer: int) -> None:
        """Whether a peer is ready for this round, and how old its state is, from what it said before."""
        ready = self._at.ready.get(peer)
        if ready is not None and round_of(ready) == round.id:
            round.ready.add(peer)

    def _check(self, round: PeerRound, now: float) -> None:
        if round.phase is not RoundPhase.MEETING or round.adoption is not None:
            return
        if not round.ready.issuperset(round.others):
            return
        versions = {peer: self._at.ready[peer].version for peer in round.others if peer in self._at.ready}
        if round.id.number > 0 or not self._algorithm.state_names:
            self._met(round)
            return
        best = max((round.version, *versions.values()))
        if round.version == best:
            self._met(round)
            return
        donor = min(peer for peer, version in versions.items() if version == best)
        names = self._algorithm.state_names
        round.adoption = StateReceiver(
            donor, round.id.generation, best, names=names, numel=self._numel, chunk_elements=self._chunk
        )
        round.progressed(donor, now)
        self.ask_again(round, donor)

    def _adopt(self, adoption: StateReceiver) -> None:
        try:
            self._algorithm.load_state(adoption.state())
        except ValueError as error:
            # Not the fault of the message that completed it.
            name = type(self._algorithm).__name__
            raise RuntimeError(f"{name} refused the state of trainer {adoption.donor}") from error

    def _met(self, round: PeerRound) -> None:
        round.phase = RoundPhase.MET
        self._at.events.append(Met(round.id, round.group))
