"""Gossip: random pairs of trainers average."""

from __future__ import annotations

from .base import AVERAGED, Algorithm, ModelOrigin, PeerLost, Peers, Replica
from .contract.grouping import shuffled
from .shared.pull import PullOptions


class Gossip(Algorithm):
    """Randomized pairwise averaging of Boyd et al., made elastic.

    Source: IEEE Trans. Inf. Theory 52(6), 2006. Each round the trainers are paired anew, by the job's seed
    and the round's number. With w_i, w_j a pair's replicas, s_i, s_j their snapshots after both have met, and
    α the elastic rate:

        m = (s_i + s_j) / 2,    w_i <- (1 - α) w_i + α m      (or the form of `PullOptions` "keep"),

    so that each goes α/2 of the way to the other, and the sum of both stays. Everything is float32 [numel].
    With an odd number of trainers one is alone: there is nothing to apply, and its round is complete.

    A round waits only for its partner, then for the mean of the two, of which each computes a half. If one of
    the two dies during the round, the other's replica is as its workers left it and the round does not count.
    If it dies after the other has received its half, the other may go on alone: its round counts, and the sum
    of both is not preserved.
    """

    name = "gossip"
    summary = "pairs, drawn anew each round, meet half-way; cheap rounds, no single model"
    needs_peers = True
    changes_groups = True
    model = ModelOrigin.REPLICAS
    optimizer_states = AVERAGED
    Options = PullOptions
    options: PullOptions

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Take the mean of two snapshots, then step toward it."""
        try:
            group = await peers.meet(shuffled(2))
            snapshot = replica.snapshot(replica.whole)
            middle = await group.mean(snapshot)
        except PeerLost:
            return False
        self.options.pull(replica, snapshot, middle)
        return True
