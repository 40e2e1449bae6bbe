"""The rendezvous before a round: every member reports that it is ready.

A member whose state of the algorithm lags behind receives that state from another first.
"""

from __future__ import annotations

from ...pipeline.text.format import duration
from ...pipeline.wire.peer_messages import PeerEnded, PeerReady, PeerState, PeerStateRequest, PeerWait
from ...sync_algos.base import Algorithm
from ...sync_algos.contract.grouping import Grouping
from .context import ProtocolContext
from .round import Met, PeerRound, RoundPhase, round_of
from .state_transfer import NO_VERSION, StateReceiver, StateSender


class Rendezvous:
    """One trainer's part of the rendezvous.

    Args:
        numel: elements of each tensor of the algorithm's state.
        chunk_elements: the most elements of a chunk of that state.
        eager: whether a round starts without waiting for the others; the first of a generation never does.
    """

    def __init__(
        self,
        context: ProtocolContext,
        algorithm: Algorithm,
        *,
        numel: int,
        chunk_elements: int,
        seed: int,
        eager: bool,
    ) -> None:
        self._context = context
        self._algorithm = algorithm
        self._state_sender = StateSender(algorithm, chunk_elements)
        self._numel, self._chunk, self._seed, self._eager = numel, chunk_elements, seed, eager

    def join_late(self) -> None:
        """Record that this trainer joined the running job, and so lacks the group's state."""
        self._state_sender.is_late = True

    def begin(self, grouping: Grouping, now: float) -> None:
        """Begin the next round of this generation; `Met` or `Ended` follows."""
        context = self._context
        groups = grouping(context.members, context.next_number, self._seed)
        group = next((tuple(sorted(group)) for group in groups if context.index in group), ())
        if not group or not set(group) <= set(context.members):
            raise ValueError(f"the grouping puts trainer {context.index} of {context.members} into {groups}")
        peer_round = PeerRound(context.upcoming, group, context.index, self._state_sender.version, now)
        context.current_round = peer_round
        for peer in peer_round.others:
            context.send_queue.notice(peer, self._ready(peer_round))
            self._apply_earlier_ready(peer_round, peer, now)
        if self._eager and peer_round.round_id.number > 0:
            self._met(peer_round)
        else:
            self._check(peer_round, now)

    def on_ready(self, peer: int, message: PeerReady, now: float) -> None:
        """Record that a peer is ready for a round.

        The message may be a repeat.
        """
        context, round_id = self._context, round_of(message)
        peer_round = context.find_round(round_id, peer)
        if peer_round is None and round_id < context.latest_ready(peer):
            return
        before = context.ready.get(peer)
        known = before is not None and (round_of(before), before.version) == (round_id, message.version)
        # An acknowledgement is not acknowledged: the exchange of messages must end.
        repeated = known and not message.no_reply
        context.ready[peer] = message
        context.record_ready(peer, round_id)
        if round_id.generation < context.generation or round_id.generation <= context.abandoned_generation:
            context.send_queue.notice(peer, PeerEnded(round_id.generation))
        elif peer_round is not None:
            if repeated:
                context.send_queue.notice(peer, PeerReady(*round_id, peer_round.version, no_reply=True))
            elif not known:
                peer_round.record_progress(peer, now)
            self._apply_earlier_ready(peer_round, peer, now)
            self._check(peer_round, now)
        elif context.history.is_completed(round_id) and not message.no_reply:
            # It completed without this peer's values: a round of zero elements needs none.
            context.send_queue.notice(peer, PeerReady(*round_id, message.version, no_reply=True))
        elif repeated and round_id.generation == context.generation:
            context.wait(peer, round_id)

    def on_wait(self, peer: int, message: PeerWait, now: float) -> None:
        """Record that a peer is alive.

        A peer that is not ready yet may take its time. Once ready it must make progress, unless others
        block it.
        """
        peer_round = self._context.find_round(round_of(message), peer)
        if peer_round is None:
            return
        if len(message.blocked_by) > len(peer_round.group):
            count = len(message.blocked_by)
            raise ValueError(f"{count} trainers are said to block a group of {len(peer_round.group)}")
        blockers = set(message.blocked_by.tolist()) - {self._context.index}
        if peer not in peer_round.ready or blockers:
            peer_round.record_progress(peer, now)

    def on_state_request(self, peer: int, message: PeerStateRequest, now: float) -> None:  # noqa: ARG002
        """Send the algorithm's state to a peer that lags behind.

        The first round cannot complete, and so change the state, while the peer still requests it.
        """
        context = self._context
        if (
            context.current_round is None
            or context.current_round.round_id != (message.generation, 0)
            or context.send_queue.has_chunks(peer)
        ):
            return
        for key, make in self._state_sender.chunks(message):
            context.send_queue.chunk(peer, (context.current_round.round_id, *key), make)

    def on_state(self, peer: int, message: PeerState, now: float) -> None:
        """Accept a chunk of the state that this trainer receives."""
        peer_round = self._context.current_round
        if (
            peer_round is None
            or peer_round.state_receiver is None
            or peer_round.round_id.generation != message.generation
        ):
            return
        if peer == peer_round.state_receiver.source and peer_round.state_receiver.take(message):
            peer_round.record_progress(peer, now)
            if peer_round.state_receiver.complete:
                self._adopt(peer_round.state_receiver)
                peer_round.state_receiver = None
                self._met(peer_round)

    def tick(self, peer_round: PeerRound, now: float) -> None:
        """Repeat requests to silent peers, and give up late ones."""
        context = self._context
        waited = [peer for peer in peer_round.others if peer not in peer_round.ready]
        if peer_round.state_receiver is not None:
            waited = [peer_round.state_receiver.source]
        late = [peer for peer in waited if peer_round.silent(peer, now) > context.timeout_seconds]
        for peer in late:
            if peer not in peer_round.ready:
                context.waited(peer, now - peer_round.began)
            context.report_late(peer)
        if late:
            # Nobody can complete a round without this trainer's values.
            context.end(
                peer_round, f"trainer {late[0]} was not ready within {duration(context.timeout_seconds)}"
            )
            return
        for peer in waited:
            if peer_round.may_request(peer, now, context.policy):
                self.repeat_request(peer_round, peer)

    def repeat_request(self, peer_round: PeerRound, peer: int) -> None:
        """Repeat the message that a peer seems to have missed."""
        message = (
            peer_round.state_receiver.request()
            if peer_round.state_receiver is not None
            else self._ready(peer_round)
        )
        self._context.send_queue.notice(peer, message)

    def _ready(self, peer_round: PeerRound) -> PeerReady:
        return PeerReady(*peer_round.round_id, peer_round.version)

    def _apply_earlier_ready(self, peer_round: PeerRound, peer: int, now: float) -> None:
        """Take over a peer's readiness for this round from an earlier message."""
        ready = self._context.ready.get(peer)
        if ready is None or round_of(ready) != peer_round.round_id or peer in peer_round.ready:
            return
        peer_round.ready.add(peer)
        if peer_round.ready.issuperset(peer_round.others):
            self._context.waited(peer, now - peer_round.began)

    def _check(self, peer_round: PeerRound, now: float) -> None:
        if peer_round.phase is not RoundPhase.MEETING or peer_round.state_receiver is not None:
            return
        if not peer_round.ready.issuperset(peer_round.others):
            return
        versions = {
            peer: self._context.ready[peer].version
            for peer in peer_round.others
            if peer in self._context.ready
        }
        if peer_round.round_id.number > 0 or not self._algorithm.state_names:
            self._met(peer_round)
            return
        best = max((peer_round.version, *versions.values()))
        newest = [peer for peer, version in versions.items() if version == best]
        # If all of them joined late, their states differ, and the first one's counts.
        differ = best == NO_VERSION and self._context.index > min(newest, default=self._context.index)
        if peer_round.version == best and not differ:
            self._met(peer_round)
            return
        source = min(newest)
        names = self._algorithm.state_names
        peer_round.state_receiver = StateReceiver(
            source,
            peer_round.round_id.generation,
            best,
            names=names,
            numel=self._numel,
            chunk_elements=self._chunk,
        )
        peer_round.record_progress(source, now)
        self.repeat_request(peer_round, source)

    def _adopt(self, state_receiver: StateReceiver) -> None:
        try:
            self._algorithm.load_state(state_receiver.state())
        except ValueError as error:
            # A RuntimeError: a ValueError would blame the message that completed the state.
            name = type(self._algorithm).__name__
            raise RuntimeError(f"{name} refused the state of trainer {state_receiver.source}") from error

    def _met(self, peer_round: PeerRound) -> None:
        peer_round.phase = RoundPhase.MET
        self._context.events.append(Met(peer_round.round_id, peer_round.group))
