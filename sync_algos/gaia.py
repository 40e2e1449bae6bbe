"""Gaia: trainers exchange only what has become significant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from .base import Algorithm, AlgorithmState, Group, ModelOrigin, PeerLost, Peers, Replica


@dataclass(frozen=True)
class GaiaOptions:
    """Options of the significance filter.

    `threshold` is the relative change at which an element is significant in the first round; it shrinks by
    the square root of the rounds, as in the paper. At 0 every change is significant. `combine` says whether
    what the trainers send is summed, as in the paper, or averaged.
    """

    threshold: float = 0.01
    combine: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < float("inf"):
            raise ValueError(f"threshold: {self.threshold!r} given; give a number of at least 0")


class Gaia(Algorithm):
    """Significance filter of Gaia (Hsieh et al., NSDI 2017).

    With w_i the replicas, s_i their snapshots after all have met, g the global model, n the trainers, τ the
    threshold, t the completed rounds, and everything element by element:

        a_i = s_i - g,    f_i = a_i where |a_i| > τ / √(t + 1) |g|, and 0 elsewhere,
        u = sum of f_i (or their mean),    g <- g + u,    w_i <- w_i + (u - f_i).

    An insignificant change stays in the replica, adds up there, and is sent once it is significant. After a
    round w_i - g is what the trainer has not sent. The resulting model is g; it lacks that rest.

    The values handed to the group are mostly 0, and the group's mean is 0 where no trainer sent anything.
    Fewer bytes travel only with a codec that leaves zeros out: `codecs.peers_up` and `peers_down` as
    "sparse". With float32 as many bytes travel as under model averaging.

    g is the state, float32 [numel], equal bit by bit on all trainers. A trainer that lags is given the newest
    g when it meets; it still sends the difference of its replica from its own last g. A trainer that dies
    during a round, at any moment, ends the round for all: nothing has changed for a survivor, and what was
    significant is sent in the next round. A checkpoint that was written while rounds went on may hold a
    replica and a g of two rounds; a run resumed from it takes their difference for the trainer's change.
    """

    name = "gaia"
    summary = "trainers add up what has changed significantly, and keep the rest until it has"
    needs_peers = True
    model = ModelOrigin.GLOBAL
    state_names = ("global",)
    Options = GaiaOptions
    options: GaiaOptions

    def start(self, replica: Replica) -> None:
        """Start the global model at the first weights."""
        self._completed = 0
        self._global = replica.snapshot(replica.whole)
        # This replica's last global model, from which its change counts, if a newer one was adopted.
        self._own: torch.Tensor | None = None
        self._meeting = False

    async def round(self, replica: Replica, peers: Peers) -> bool:
        """All-reduce a snapshot's significant changes, then apply those of other trainers."""
        try:
            group = await self._meet(peers)
            snapshot = replica.snapshot(replica.whole)
            base = self._global if self._own is None else self._own
            sent = self._significant(snapshot - base)
            mean = await group.mean(sent)
        except PeerLost:
            return False
        times = len(group.members) if self.options.combine == "sum" else 1
        updated = torch.add(self._global, mean, alpha=times)
        replica.add_(replica.whole, (updated - base).sub_(sent), 1.0)
        self._completed += 1
        self._global, self._own = updated, None
        return True

    async def _meet(self, peers: Peers) -> Group:
        self._meeting = True
        try:
            return await peers.meet()
        finally:
            self._meeting = False

    def _significant(self, change: torch.Tensor) -> torch.Tensor:
        """Return `change` with 0 for insignificant elements; NaN is significant."""
        least = self._global.abs().mul_(self.options.threshold / math.sqrt(self._completed + 1))
        return change.masked_fill_(change.abs() <= least, 0.0)

    def state(self) -> AlgorithmState:
        """Return g, and the number of completed rounds."""
        return AlgorithmState(self._completed, {"global": self._global})

    def load_state(self, state: AlgorithmState) -> None:
        """Adopt g from a checkpoint or from a trainer ahead."""
        if self._meeting and self._own is None:
            self._own = self._global
        self._completed = state.completed_rounds
        self._global = state.tensors["global"]

    def global_model(self) -> torch.Tensor:
        """Return g."""
        return self._global
