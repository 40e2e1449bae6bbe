"""Global model with a step per round; base of BMUF, and of DiLoCo, an example."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from ..base import Algorithm, AlgorithmState, ModelOrigin, PeerLost, Peers, Replica


class OuterModel(Algorithm):
    """Base of algorithms with a global model and momentum, float32 [numel].

    The global model g and the momentum v are the state, equal bit by bit on all trainers. A trainer whose
    state is behind gets the newest when it meets. A round waits until all trainers have met, then does one
    all-reduce of the whole buffer. If a trainer dies at any moment of a round, it ends for all: neither
    replica nor state of a survivor changes, and the next round meets the remaining trainers.
    """

    needs_peers = True
    model = ModelOrigin.GLOBAL
    state_names = ("global", "momentum")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._completed = 0
        self._global = torch.empty(0)
        self._momentum = torch.empty(0)

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
        self._step(mean, len(group.members))
        self._completed += 1
        self._pull(replica, snapshot)
        return True

    @abstractmethod
    def _step(self, mean: torch.Tensor, members: int) -> None:
        """Step g and v by the mean of `members` replicas, float32 [numel]."""

    @abstractmethod
    def _pull(self, replica: Replica, snapshot: torch.Tensor) -> None:
        """Move the replica, whose part in the mean was `snapshot`."""

    def state(self) -> AlgorithmState:
        """Return g and v, and the number of completed rounds."""
        return AlgorithmState(self._completed, {"global": self._global, "momentum": self._momentum})

    def load_state(self, state: AlgorithmState) -> None:
        """Adopt g and v."""
        self._completed = state.completed_rounds
        self._global = state.tensors["global"]
        self._momentum = state.tensors["momentum"]

    def global_model(self) -> torch.Tensor:
        """Return g."""
        return self._global
