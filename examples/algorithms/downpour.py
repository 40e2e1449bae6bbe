"""Downpour: a center that sums what every trainer has trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from shadowsync.sync_algos.contract.options import require_rate
from shadowsync.sync_algos.shared.delta_exchange import DeltaExchange


@dataclass(frozen=True)
class DownpourOptions:
    """Options of the delta-summing center.

    `rate` is the share η of each delta that the center adds: 1 sums the trainers' progress, 1/n averages it
    over n trainers.
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        require_rate("rate", self.rate)


class Downpour(DeltaExchange):
    """Downpour of Dean et al., NIPS 2012, with weights for gradients.

    The paper is Large Scale Distributed Deep Networks. Its replicas send accumulated gradients, and its
    center takes the steps. Here the workers' own optimizer takes the steps, and a replica sends how far it
    has moved, d (`DeltaExchange`). With c the center and η the rate: c <- c + η d.

    A center that added a delta replies again to a trainer that lacks the reply, one that did not adds it
    then. A sync node that is gone for good takes its slice of the center with it.

    If a trainer dies, what it trained since its last round is lost. The same is lost if a run resumes from a
    checkpoint that was written while rounds went on: the base starts anew as the replica.
    """

    name = "downpour"
    summary = "a center adds up what each replica has trained; the replica continues from the center"
    # Sums of squares add up over trainers. A moment decays on each trainer, and would decay n times.
    optimizer_states = ("adagrad",)
    Options = DownpourOptions
    options: DownpourOptions

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Add the delta at the rate, and return the center's new value."""
        return center.add_(values, alpha=self.options.rate).clone()
