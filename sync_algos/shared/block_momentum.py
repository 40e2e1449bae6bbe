"""The block momentum of BMUF, by the number of trainers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

WARMUP_ROUNDS: Final = 8
"""With "warmup" μ is half of 1 in the round after this many."""


@dataclass(frozen=True)
class BlockMomentum:
    """Options of a global model's step with momentum; see Chen and Huo, ICASSP 2016.

    `eta` is the step η of the global model toward the mean. `block_momentum` is μ, 0 for none; "auto" is
    Chen and Huo's choice for the n trainers of each round: η / (n (1 - μ)) = 1, so 1 - 1/n at η = 1 (their
    trainers stop for each round). "warmup" lets μ grow with the completed rounds r, as r / (r + 8), to 1 -
    1/√n at η = 1. So the momentum never reaches far back in a job's few rounds, and it multiplies steps by
    √n, as suits adaptive optimizers (Malladi et al., arXiv 2205.10287), not by n; where rounds were rare or
    late, the published one was too large (benchmarks/quality/results.md).
    """

    eta: float = 1.0
    block_momentum: float | Literal["auto", "warmup"] = "warmup"

    def __post_init__(self) -> None:
        if not 0.0 < self.eta < float("inf"):
            raise ValueError(f"eta: {self.eta!r} given; give a number above 0")
        if not isinstance(self.block_momentum, str) and not 0.0 <= self.block_momentum < 1.0:
            raise ValueError(
                f"block_momentum: {self.block_momentum!r} given; give a number of at least 0 and below 1, "
                '"auto" or "warmup"'
            )

    def momentum_of(self, trainers: int, completed_rounds: int) -> float:
        """Return μ for a round of so many trainers.

        With "auto", a block's update adds n times its mean to the global model over all rounds: the sum of
        the trainers' progress. With "warmup" it is √n times at last. μ is 0 if η alone is more than that.
        """
        if not isinstance(self.block_momentum, str):
            return self.block_momentum
        if self.block_momentum == "auto":
            return max(0.0, 1.0 - self.eta / trainers)
        warmed_up = completed_rounds / (completed_rounds + WARMUP_ROUNDS)
        return min(max(0.0, 1.0 - self.eta / math.sqrt(trainers)), warmed_up)
