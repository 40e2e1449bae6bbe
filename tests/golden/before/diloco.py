"""DiLoCo: an outer Nesterov step over the mean of the replicas, as a plug-in of shadowsync."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost, Peers, Replica


@dataclass(frozen=True)
class DiLoCoOptions:
    """`outer_lr` and `outer_momentum` are those of the outer optimizer; the paper's are the defaults."""

    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.outer_lr <= 2.0:
            raise ValueError(f"outer_lr: {self.outer_lr!r} given; a number above 0 and at most 2 will do")
        if not 0.0 <= self.outer_momentum < 1.0:
            raise ValueError(f"outer_momentum: {self.outer_momentum!r} given; from 0 to below 1 will do")


class DiLoCo(Algorithm):
    """DiLoCo as in Douillard et al., arXiv 2311.08105, algorithm 1, without its pause.

    With w_i the replicas, s_i their snapshots after all have met, g the outer model, v the outer momentum,
    β its factor and γ the outer learning rate (Nesterov's step as torch.optim.SGD takes it):

        d = mean of s_i - g,    v <- β v + d,    g <- g + γ (d + β v),    w_i <- w_i + (g - s_i).

    The paper's workers stop and go on from g. Here they train on meanwhile, so w_i is moved by what it
    lacked of g when the round began, and keeps what it has learned since.

    All are float32 [numel]. A round awaits that all trainers have met, then one mean of the whole buffer. If
    a trainer is lost before that is there, nothing has changed, and the next round meets those who are left.
    """

    name = "diloco"
    summary = "an outer Nesterov step over the mean of the replicas, which continue from there"
    needs_peers = True
    model = ModelOrigin.GLOBAL
    state_names = ("outer", "momentum")
    Options = DiLoCoOptions
    options: DiLoCoOptions

    def start(self, replica: Replica) -> None:
        """The outer model begins as the first weights."""
        self._completed = 0
        self._outer = replica.snapshot(replica.whole)
        self._momentum = torch.zeros_like(self._outer)

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """One mean, one outer step, and the replica follows it."""
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            mean = await group.mean(snapshot)
        except PeerLost:
            return False
        beta, gamma = self.options.outer_momentum, self.options.outer_lr
        update = mean - self._outer
        self._momentum.mul_(beta).add_(update)
        self._outer.add_(update.add_(self._momentum, alpha=beta), alpha=gamma)
        self._completed += 1
        replica.add_(replica.whole, self._outer - snapshot, 1.0)
        return True

    def state(self) -> AlgorithmState:
        """What a trainer needs that joins."""
        return AlgorithmState(self._completed, {"outer": self._outer, "momentum": self._momentum})

    def load_state(self, state: AlgorithmState) -> None:
        """Goes on where another trainer, or a checkpoint, was."""
        self._completed = state.completed_rounds
        self._outer, self._momentum = state.tensors["outer"], state.tensors["momentum"]

    def global_model(self) -> torch.Tensor:
        """The outer model is what comes out."""
        return self._outer
