"""DiLoCo: an outer Nesterov step by the mean of the replicas' training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost, Peers, Replica


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


class DiLoCo(Algorithm):
    """DiLoCo of Douillard et al., arXiv 2311.08105, Algorithm 1, without its pause.

    With w_i the replicas, s_i their snapshots after all have met, g the global model, v the outer momentum, β
    its factor and γ the outer learning rate (Nesterov's step as torch.optim.SGD takes it, with the negative
    mean delta as the gradient):

        d = mean of s_i - g,    v <- β v + d,    g <- g + γ (d + β v),    w_i <- w_i + (g - s_i).

    The paper's workers stop and go on from g. Here workers train on during a round, and the replica keeps
    what they train. At a fixed rate they train nothing meanwhile, and w_i becomes g.

    The replicas move as under BMUF with nesterov, η = γ, μ = β, elastic rate 1 and the form "keep". The
    resulting model differs: BMUF's is without the look-ahead, DiLoCo's is the one that replicas go on from.
    g and v are float32 [numel], the state, and equal bit by bit on all trainers. A round waits until all
    trainers have met. If one dies in it, it ends for all, and changes nothing.
    """

    name = "diloco"
    summary = (
        "a global model takes an outer Nesterov step toward the replicas' mean; the replicas continue from it"
    )
    needs_peers = True
    model = ModelOrigin.GLOBAL
    state_names = ("global", "momentum")
    Options = DiLoCoOptions
    options: DiLoCoOptions

    def start(self, replica: Replica) -> None:
        """Start the global model at the first weights."""
        self._completed = 0
        self._global = replica.snapshot(replica.whole)
        self._momentum = torch.zeros_like(self._global)

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """All-reduce a snapshot, step the global model, then move the replica."""
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            mean = await group.mean(snapshot)
        except PeerLost:
            return False
        beta, update = self.options.outer_momentum, mean - self._global
        self._momentum.mul_(beta).add_(update)
        self._global.add_(update.add_(self._momentum, alpha=beta), alpha=self.options.outer_lr)
        self._completed += 1
        replica.add_(replica.whole, self._global - snapshot, 1.0)
        return True

    def state(self) -> AlgorithmState:
        """Return g and v, and the number of completed rounds."""
        return AlgorithmState(self._completed, {"global": self._global, "momentum": self._momentum})

    def load_state(self, state: AlgorithmState) -> None:
        """Adopt g and v."""
        self._completed = state.completed_rounds
        self._global, self._momentum = state.tensors["global"], state.tensors["momentum"]

    def global_model(self) -> torch.Tensor:
        """Return g."""
        return self._global
