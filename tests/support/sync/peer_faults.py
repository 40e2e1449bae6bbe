"""A trainer that dies or stalls at a certain phase of a round."""

from __future__ import annotations

from enum import Enum

from shadowsync.pipeline.wire.peer_messages import PeerChunk, PeerReady, PeerResult
from shadowsync.pipeline.wire.schema import Message

from .peer_net import Net


class Moment(Enum):
    """When it happens: each is a state that a round of several chunks a slice passes through."""

    BEFORE_READY = "before it is ready"
    AFTER_READY = "after it said to all that it is ready"
    MID_SCATTER = "with some of its chunks sent"
    MID_GATHER = "with some of its results sent"
    SOME_HAVE_ALL = "with all its results at one peer, and none at the others"
    COMPLETED = "after its round is complete"


class Action(Enum):
    """What happens to it."""

    DIES = "dies"
    STALLS = "stalls"


class PeerFault:
    """Strikes one trainer at one moment of the next round that it takes part in. Made between rounds.

    Args:
        slice_chunks: how many chunks the trainer reduces.
    """

    def __init__(self, net: Net, rank: int, moment: Moment, action: Action, slice_chunks: int) -> None:
        self.injected = False
        self._net, self._rank, self._moment, self._action = net, rank, moment, action
        self._ready: set[int] = set()
        self._results_before = len(net.trainers[rank].results)
        self._others = [trainer.index for trainer in net.trainers if trainer.index != rank]
        self._had: set[int] = set()
        self._slice_chunks = slice_chunks
        net.after_send = self._after_send
        net.lose = self._lose
        if moment is Moment.BEFORE_READY:
            self._strike()

    def watch(self) -> None:
        """To be called between steps: some moments are not those of a message."""
        trainer = self._net.trainers[self._rank]
        completed = len(trainer.results) > self._results_before
        if not self.injected and self._moment is Moment.COMPLETED and completed:
            self._strike()

    def end(self) -> None:
        """One that stalls goes on."""
        self._net.trainers[self._rank].stalled = False

    def _lose(self, sender: int, to: int, message: Message) -> bool:
        # What a process had still to send is lost with it.
        one = self._moment is Moment.SOME_HAVE_ALL and isinstance(message, PeerResult)
        return one and not self.injected and sender == self._rank and to != self._others[0]

    def _after_send(self, sender: int, to: int, message: Message) -> None:
        if self.injected or sender != self._rank:
            return
        if isinstance(message, PeerReady):
            self._ready.add(to)
        moment = self._moment
        if (
            (moment is Moment.AFTER_READY and len(self._ready) == len(self._others))
            or (moment is Moment.MID_SCATTER and isinstance(message, PeerChunk))
            or (moment is Moment.MID_GATHER and isinstance(message, PeerResult))
        ):
            self._strike()
        if moment is Moment.SOME_HAVE_ALL and isinstance(message, PeerResult) and to == self._others[0]:
            self._had.add(message.position)
            if len(self._had) == self._slice_chunks:
                self._strike()

    def _strike(self) -> None:
        self.injected = True
        if self._action is Action.DIES:
            self._net.kill(self._rank)
        else:
            self._net.trainers[self._rank].stalled = True
