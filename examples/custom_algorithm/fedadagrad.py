"""FedAdagrad, an outer Adagrad step over the replicas' mean, as a plug-in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost, Peers, Replica


@dataclass(frozen=True)
class FedAdagradOptions:
    """Options of the outer optimizer."""

    outer_lr: float = 0.1
    epsilon: float = 0.001

    def __post_init__(self) -> None:
        if not 0.0 < self.outer_lr <= 10.0:
            raise ValueError(f"outer_lr: {self.outer_lr!r} given; give a number above 0 and at most 10")
        if not 0.0 < self.epsilon <= 10.0:
            raise ValueError(f"epsilon: {self.epsilon!r} given; give a number above 0 and at most 10")


class FedAdagrad(Algorithm):
    """FedAdagrad without momentum and without its pause.

    Source: Reddi et al., arXiv 2003.00295, algorithm 2.

    With w_i the replicas, s_i their snapshots after all have met, g the outer model, v the sums of squares,
    γ the outer learning rate and ε a constant that keeps the divisor above 0 (as in torch.optim's Adagrad):

        d = mean of s_i - g,    v <- v + d²,    g <- g + γ d / (√v + ε),    w_i <- w_i + (g - s_i).

    The paper's workers stop and go on from g. Here they train on meanwhile, so w_i moves by its difference
    to g at the start of the round, and keeps what it has learned since.

    All are float32 [numel]. A round waits until all trainers have met, then for one mean of the whole buffer.
    If a trainer is lost before that, nothing has changed, and the next round meets the remaining ones.
    """

    name = "fedadagrad"
    summary = "an outer Adagrad step over the mean of the replicas, which continue from there"
    needs_peers = True
    model = ModelOrigin.GLOBAL
    state_names = ("outer", "sums")
    Options = FedAdagradOptions
    options: FedAdagradOptions

    def start(self, replica: Replica) -> None:
        """Start the outer model from the first weights."""
        self._completed = 0
        self._outer = replica.snapshot(replica.whole)
        self._sums = torch.zeros_like(self._outer)

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Run one round: a mean, an outer step, a move of the replica."""
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            mean = await group.mean(snapshot)
        except PeerLost:
            return False
        update = mean - self._outer
        self._sums.addcmul_(update, update)
        divisor = self._sums.sqrt().add_(self.options.epsilon)
        self._outer.addcdiv_(update, divisor, value=self.options.outer_lr)
        self._completed += 1
        replica.add_(replica.whole, self._outer - snapshot, 1.0)
        return True

    def state(self) -> AlgorithmState:
        """Return the state for a joining trainer."""
        return AlgorithmState(self._completed, {"outer": self._outer, "sums": self._sums})

    def load_state(self, state: AlgorithmState) -> None:
        """Load the state of another trainer or a checkpoint."""
        self._completed = state.completed_rounds
        self._outer, self._sums = state.tensors["outer"], state.tensors["sums"]

    def global_model(self) -> torch.Tensor:
        """Return the outer model."""
        return self._outer
