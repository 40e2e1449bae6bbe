"""Blockwise model-update filtering: a global model with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .base import Replica
from .shared.block_momentum import BlockMomentum
from .shared.outer_model import OuterModel
from .shared.pull import PullOptions


@dataclass(frozen=True)
class BMUFOptions(BlockMomentum, PullOptions):
    """Options of BMUF; see `BlockMomentum` and `PullOptions`.

    By default replicas take the whole global model and keep what their workers did meanwhile, and momentum is
    warmed up. Zheng et al. have `form` "interpolate", an `elastic_rate` below 1, and no momentum.

    `nesterov` moves the replicas toward the look-ahead: the point to which the momentum will carry the global
    model.
    """

    elastic_rate: float = 1.0
    form: Literal["interpolate", "keep"] = "keep"
    nesterov: bool = False

    def __post_init__(self) -> None:
        PullOptions.__post_init__(self)
        BlockMomentum.__post_init__(self)
        if not self.nesterov:
            return
        if isinstance(self.block_momentum, str):
            # The look-ahead uses the last round's μ, which depends on who took part in that round.
            raise ValueError(
                f'nesterov: true given; give block_momentum as a number, not as "{self.block_momentum}"'
            )
        if self.block_momentum == 0.0:
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
    model it started from, the old b. Under NBM that is the look-ahead, not g: with m - g, the replicas' move
    to the look-ahead would count as training and be fed back. At first g = b = the first weights and v = 0.

    g and v are the state (see `OuterModel`); b follows from them. The resulting model is g, not the
    look-ahead.
    """

    name = "bmuf"
    summary = "a global model moves toward the replicas' mean, with momentum; the replicas continue from it"
    Options = BMUFOptions
    options: BMUFOptions

    def _step(self, mean: torch.Tensor, members: int) -> None:
        update = mean - self._target()
        momentum = self.options.momentum_of(members, self._completed)
        self._momentum.mul_(momentum).add_(update, alpha=self.options.eta)
        self._global.add_(self._momentum)

    def _pull(self, replica: Replica, snapshot: torch.Tensor) -> None:
        self.options.pull(replica, snapshot, self._target())

    def _target(self) -> torch.Tensor:
        """Return the replicas' target b: with Nesterov, the look-ahead."""
        momentum = self.options.block_momentum
        if self.options.nesterov and not isinstance(momentum, str):
            return torch.add(self._global, self._momentum, alpha=momentum)
        return self._global
