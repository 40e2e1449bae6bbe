"""Two forms of moving a replica toward a model computed from snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..base import Replica
from ..contract.options import require_rate


@dataclass(frozen=True)
class PullOptions:
    """Options of moving a replica w toward a model m.

    The model m was computed with the replica's snapshot s.

    elastic_rate: α. At 1 all of m is taken. In shadow mode the workers train on during a round, so that m is
        older than w by their steps. At 1 the form "interpolate" throws these steps away, which is why 0.5 is
        the default. At a fixed rate w = s, and 1 is the classic, unelastic algorithm.
    form: "interpolate" is the paper's, w <- (1 - α) w + α m; it also shrinks what the workers did since s, by
        1 - α. "keep" is w <- w + α (m - s), which leaves what they did as it is. At a fixed rate, where
        w = s, the two are the same but for rounding.
    """

    elastic_rate: float = 0.5
    form: Literal["interpolate", "keep"] = "interpolate"

    def __post_init__(self) -> None:
        require_rate("elastic_rate", self.elastic_rate)

    def pull(self, replica: Replica, snapshot: torch.Tensor, target: torch.Tensor) -> None:
        """Move the whole replica toward `target`.

        `snapshot` and `target`, float32 [numel], are only read.
        """
        if self.form == "keep":
            replica.add_(replica.whole, target - snapshot, self.elastic_rate)
        else:
            replica.interpolate_(replica.whole, target, self.elastic_rate)
