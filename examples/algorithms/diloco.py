"""DiLoCo: an outer Nesterov step by the mean of the replicas' training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from shadowsync.sync_algos.base import Replica
from shadowsync.sync_algos.shared.outer_model import OuterModel


@dataclass(frozen=True)
class DiLoCoOptions:
    """Options of DiLoCo; the defaults are the paper's.

    `outer_lr` is the outer optimizer's learning rate γ, `outer_momentum` its momentum β.
    """

    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.outer_lr <= 2.0:
            raise ValueError(f"outer_lr: {self.outer_lr!r} given; give a number above 0 and at most 2")
        if not 0.0 <= self.outer_momentum < 1.0:
            raise ValueError(
                f"outer_momentum: {self.outer_momentum!r} given; give a number of at least 0 and below 1"
            )


class DiLoCo(OuterModel):
    """DiLoCo of Douillard et al., arXiv 2311.08105, Algorithm 1, without its pause.

    With w_i the replicas, s_i their snapshots after all have met, g the global model, v the outer momentum, β
    its factor and γ the outer learning rate (Nesterov's step as torch.optim.SGD takes it, with the negative
    mean delta as the gradient):

        d = mean of s_i - g,    v <- β v + d,    g <- g + γ (d + β v),    w_i <- w_i + (g - s_i).

    The paper's workers stop and go on from g. Here workers train on during a round, and the replica keeps
    what they train. At a fixed rate they train nothing meanwhile, and w_i becomes g.

    The replicas move as under BMUF with nesterov, η = γ, μ = β, elastic rate 1 and the form "keep". The
    resulting model differs: BMUF's is without the look-ahead, DiLoCo's is the one that replicas go on from.
    g and v are the state (see `OuterModel`).
    """

    name = "diloco"
    summary = (
        "a global model takes an outer Nesterov step toward the replicas' mean; the replicas continue from it"
    )
    Options = DiLoCoOptions
    options: DiLoCoOptions

    def _step(self, mean: torch.Tensor, members: int) -> None:  # noqa: ARG002
        beta = self.options.outer_momentum
        update = mean - self._global
        self._momentum.mul_(beta).add_(update)
        self._global.add_(update.add_(self._momentum, alpha=beta), alpha=self.options.outer_lr)

    def _pull(self, replica: Replica, snapshot: torch.Tensor) -> None:
        replica.add_(replica.whole, self._global - snapshot, 1.0)
