"""Downpour: a center that sums what every trainer has trained."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from .base import Algorithm, ModelOrigin, PeerLost, Peers, Replica, Slice
from .contract.options import require_rate


@dataclass(frozen=True)
class DownpourOptions:
    """Options of the delta-summing center.

    `rate` is the share η of each delta that the center adds: 1 sums the trainers' progress, 1/n averages it
    over n trainers.
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        require_rate("rate", self.rate)


class Downpour(Algorithm):
    """Downpour of Dean et al., NIPS 2012, with weights for gradients.

    The paper is Large Scale Distributed Deep Networks. Its replicas send accumulated gradients, and its
    center takes the steps. Here the workers' own optimizer takes the steps, and a replica sends how far it
    has moved. With w the replica, s its snapshot, b the base (the part of the replica that is accounted for),
    c the center and η the rate:

        d = s - b,    c <- c + η d,    w <- w + (c - s),    b <- c      with the new c.

    So after a round the replica is the center plus what its workers did since the snapshot, and b is where
    the next delta starts. At first b is the first weights, as c is. Everything is float32 [numel], and
    exchanged slice by slice.

    Each delta counts once. If no reply comes, it is not known whether the center added the delta; d and s are
    kept. The next round first settles that exchange (`Center.settle`): a center that added d replies again,
    one that did not adds it now. Then the round sends what was trained since s. A sync node that is gone for
    good takes its slice of the center with it.

    If a trainer dies, what it trained since its last round is lost. The same is lost if a run resumes from a
    checkpoint that was written while rounds went on: b starts anew as the replica.
    """

    name = "downpour"
    summary = "a center adds up what each replica has trained; the replica continues from the center"
    needs_center = True
    counts_once = True
    model = ModelOrigin.CENTER
    # Sums of squares add up over trainers. A moment decays on each trainer, and would decay n times.
    optimizer_states = ("adagrad",)
    Options = DownpourOptions
    options: DownpourOptions

    def start(self, replica: Replica) -> None:
        """Start the base at the first weights."""
        self._base = replica.snapshot(replica.whole)
        self._unsettled: dict[Slice, torch.Tensor] = {}

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Exchange every slice with the center, all at once."""
        done = await asyncio.gather(*(self._exchange(replica, peers, part) for part in peers.center.slices))
        return all(done)

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        base = self._base[part.start : part.stop]
        try:
            if part in self._unsettled:
                self._take(replica, part, await peers.center.settle(part))
            snapshot = self._unsettled[part] = replica.snapshot(part)
            self._take(replica, part, await peers.center.exchange(part, snapshot - base))
        except PeerLost:
            return False
        return True

    def _take(self, replica: Replica, part: Slice, center: torch.Tensor) -> None:
        """Move the replica by the center minus its snapshot."""
        snapshot = self._unsettled.pop(part)
        replica.add_(part, center - snapshot, 1.0)
        # Rounded as the replica is, so that the delta of an untrained replica is exactly 0.
        torch.add(snapshot, center - snapshot, out=self._base[part.start : part.stop])

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Add the delta at the rate, and return the center's new value."""
        return center.add_(values, alpha=self.options.rate).clone()
