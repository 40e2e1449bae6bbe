"""Elastic averaging with a center (EASGD), as in ShadowSync's Algorithm 2."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from .base import AVERAGED, Algorithm, ModelOrigin, PeerLost, Peers, Replica, Slice
from .contract.options import require_rate


@dataclass(frozen=True)
class ElasticOptions:
    """Options of elastic averaging.

    `elastic_rate` is α: near 0 it moves neither side much; at 1 the center takes the replica's values,
    and in the symmetric form the two swap places.
    """

    elastic_rate: float = 0.5

    def __post_init__(self) -> None:
        require_rate("elastic_rate", self.elastic_rate)


class EASGD(Algorithm):
    """EASGD of Zheng et al., arXiv 2003.03477, Algorithm 2.

    The replica uses the center's new value. With α the elastic rate, w the replica and c the center:

        c <- (1 - α) c + α w,   then   w <- (1 - α) w + α c     with the new c.

    One delta travels per slice: the center answers d = α (w - c) and adds d to itself. With the w that was
    sent, the second step is w <- w - (1 - α) d. The replica subtracts (1 - α) d from its value at the time
    the answer arrives, so the workers' steps since the snapshot stay.

    If a sync node dies during a round, its slice of the replica is unchanged, the other slices are applied
    whole, and the round does not count. If it died after applying, its part of the center is gone anyway.
    """

    name = "easgd"
    summary = "elastic averaging with a center; the replica moves toward the center's new value"
    needs_center = True
    model = ModelOrigin.CENTER
    optimizer_states = AVERAGED
    # A replica goes α (1 - α) of the way to the center, most at 0.5; measured: benchmarks/quality/results.md.
    Options = ElasticOptions
    options: ElasticOptions

    def check_trainers(self, trainers: int) -> None:
        """Refuse a rate by which no replica would take anything from the others."""
        if trainers > 1 and not self.replica_share():
            raise ValueError(
                f"elastic_rate: 1 given with {trainers} trainers; under {self.name} no replica would take "
                "anything from the others; give a lower one, leave it out for 0.5, or set "
                'sync.algorithm = "bmuf"'
            )

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Exchange every slice with the center, all at once."""
        done = await asyncio.gather(*(self._exchange(replica, peers, part) for part in peers.center.slices))
        return all(done)

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        try:
            delta = await peers.center.exchange(part, replica.snapshot(part))
        except PeerLost:
            return False
        replica.add_(part, delta, -self.replica_share())
        return True

    def replica_share(self) -> float:
        """Return the replica's share of the delta, 1 - α."""
        return 1.0 - self.options.elastic_rate

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Add `d = α (w - c)` to c, and return d."""
        delta = (values - center).mul_(self.options.elastic_rate)
        center.add_(delta)
        return delta
