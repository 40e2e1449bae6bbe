"""Model averaging: every replica moves toward the mean of all."""

from __future__ import annotations

from dataclasses import dataclass

from .base import AVERAGED, Algorithm, ModelOrigin, PeerLost, Peers, Replica
from .shared.pull import PullOptions


@dataclass(frozen=True)
class MAOptions(PullOptions):
    """Options of model averaging.

    `weighted` weighs each replica by the examples that it trained since its last completed round, so that
    a slow trainer's old weights pull less; if no trainer trained any, all count the same.
    """

    weighted: bool = False


class MA(Algorithm):
    """Model averaging of Zheng et al., arXiv 2003.03477, Algorithm 3.

    With w_i the replicas, s_i their snapshots after all have met, α the elastic rate, and p_i the examples
    trained since the last completed round (or 1 for all):

        m = sum p_i s_i / sum p_i,    w_i <- (1 - α) w_i + α m      (or the form of `PullOptions` "keep").

    Everything is float32 [numel]. A round waits until all trainers have met, then does one all-reduce of the
    whole buffer. The whole result is there before any of it is applied. A trainer that dies during a round,
    at any moment, ends it: each survivor's replica is as its workers left it, the round does not count, and
    what was trained weighs in the next round, which meets those who are left.
    """

    name = "ma"
    summary = "model averaging; every replica moves toward the mean of all replicas"
    needs_peers = True
    model = ModelOrigin.MEAN
    optimizer_states = AVERAGED
    # At 1 replicas would be closer still, but a round would throw away what workers did meanwhile.
    Options = MAOptions
    options: MAOptions

    def __init__(self, options: MAOptions) -> None:
        super().__init__(options)
        self._counted = 0

    def start(self, replica: Replica) -> None:
        """Start counting examples: all replicas are equal now."""
        self._counted = replica.trained_examples

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """All-reduce a snapshot, then step toward the mean."""
        try:
            group = await peers.meet()
            trained = replica.trained_examples
            snapshot = replica.snapshot(replica.whole)
            # Negative if a device took back a bad batch that it had counted ahead.
            weight = float(max(0, trained - self._counted)) if self.options.weighted else 1.0
            mean = await group.mean(snapshot, weight)
        except PeerLost:
            return False
        self.options.pull(replica, snapshot, mean)
        self._counted = trained
        return True
