"""Blockwise model-update filtering: a global model with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import Replica
from .outer_model import OuterModel
from .pull import PullOptions


@dataclass(frozen=True)
class BMUFOptions(PullOptions):
    """Options of BMUF.

    `eta` is the step η of the global model toward the mean. `block_momentum` is μ, 0 for none (Chen and
    Huo take 1 - 1/n for n trainers that stop for each round). `nesterov` makes the replicas go toward
    where the momentum will carry the global model.
    """

    eta: float = 1.0
    block_momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.eta < float("inf"):
            raise ValueError(f"eta: {self.eta!r} given; give a number above 0")
        if not 0.0 <= self.block_momentum < 1.0:
            raise ValueError(
                f"block_momentum: {self.block_momentum!r} given; give a number of at least 0 and below 1"
            )
        if self.nesterov and self.block_momentum == 0.0:
            raise ValueError("nesterov: true given; give a block_momentum above 0 too")


class BMUF(OuterModel):
    """BMUF of Zheng et al., Algorithm 4, with Chen and Huo's momentum.

    Sources: Zheng et al., arXiv 2003.03477; Chen and Huo, ICASSP 2016. With w_i the replicas, s_i their
    snapshots after all have met, g the global model, v the block momentum, b what the replicas go toward
    (what Chen and Huo broadcast), η the step, μ the block momentum's factor and α the elastic rate:

        m = mean of s_i,   d = m - b,   v <- μ v + η d,   g <- g + v,
        b = g  (none: μ = 0; plain: CBM)   or   b = g + μ v  (Nesterov: NBM),
        w_i <- (1 - α) w_i + α b      (or the form of `PullOptions` "keep").

    With μ = 0 this is the paper's g <- g + η (m - g). The block's update d is what training added to the
    model that it started from. That is the old b: under NBM the look-ahead, not g, or the replicas' way to
    the look-ahead would be taken for training and fed back. At first g = b = the first weights and v = 0.

    g and v are the state (see `OuterModel`); b follows from them. The model that comes out is g, not the
    look-ahead.
    """

    name = "bmuf"
    summary = (
        "a global model moves toward the replicas' mean, optionally with momentum; the replicas follow it"
    )
    Options = BMUFOptions
    options: BMUFOptions

    def _step(self, mean: torch.Tensor, members: int) -> None:  # noqa: ARG002
        update = mean - self._target()
        self._momentum.mul_(self.options.block_momentum).add_(update, alpha=self.options.eta)
        self._global.add_(self._momentum)

    def _pull(self, replica: Replica, snapshot: torch.Tensor) -> None:
        self.options.pull(replica, snapshot, self._target())

    def _target(self) -> torch.Tensor:
        """Return the replicas' target b: with Nesterov, the look-ahead."""
        if self.options.nesterov:
            return torch.add(self._global, self._momentum, alpha=self.options.block_momentum)
        return self._global
