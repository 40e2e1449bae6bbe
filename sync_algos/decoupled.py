"""Decoupled: a center merges the deltas of a quorum, weighted by examples, with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from .base import Merge, MergeTerms
from .shared.block_momentum import BlockMomentum
from .shared.delta_exchange import DeltaExchange


@dataclass(frozen=True)
class DecoupledOptions(BlockMomentum):
    """Options of the merge.

    `quorum` is the number of trainers that a merge waits for, at most all of them; "half" is half of those
    that take part, rounded up. Then it waits for the others as long as they are usually apart: until the
    median time since their last answer plus `grace` times its median absolute deviation.
    `longest_wait_seconds` bounds all of this, from the first contribution on.
    """

    quorum: int | Literal["half"] = "half"
    grace: float = 4.0
    longest_wait_seconds: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.quorum, str) and self.quorum < 1:
            raise ValueError(f'quorum: {self.quorum!r} given; give a number of trainers, or "half"')
        if not 0.0 <= self.grace < float("inf"):
            raise ValueError(f"grace: {self.grace!r} given; give a number of at least 0")
        if not 0.0 < self.longest_wait_seconds <= 60.0:
            raise ValueError(
                f"longest_wait_seconds: {self.longest_wait_seconds!r} given; give a number above 0 and at "
                "most 60"
            )


class Decoupled(DeltaExchange):
    """BMUF at a center that waits for nobody, after Decoupled DiLoCo.

    Sources: Douillard et al., arXiv 2604.21428 (quorum, grace, weights); Chen and Huo, ICASSP 2016, and Zheng
    et al., arXiv 2003.03477, Algorithm 4 (the momentum). A trainer sends the delta d_i that it has trained
    since the last answer, and the number of examples e_i behind it (`DeltaExchange`). A merge closes without
    those that are late: what they have done is in their next delta, with all of its examples. With n the
    trainers that take part and are not away, E the sum of e_i over the merge, q = E² / Σ e_i² the number
    of equal contributions that these are worth, g the center, v the momentum, η the step and μ the momentum's
    factor for n trainers:

        d = Σ e_i d_i / E,    v <- μ v + η (q / n) d,    g <- g + v,

    and each trainer of the merge goes on from g. If each of n trainers sends as many examples, q = n and this
    is BMUF with the form "keep" and an elastic rate of 1. The factor q / n makes a trainer's work count as
    much in a merge of few as in one of all. A merge without examples moves nothing.

    If a trainer dies, what it trained since its last merge is lost. If a sync node dies, its slice is made
    again as the mean of the replicas, without momentum.
    """

    name = "decoupled"
    summary = (
        "a center merges the deltas of those who have come, weighted by examples, with momentum; "
        "nobody waits for a late trainer"
    )
    merges = True
    center_state_names = ("momentum",)
    Options = DecoupledOptions
    options: DecoupledOptions

    def check_trainers(self, trainers: int) -> None:
        """Refuse a quorum that can never come."""
        quorum = self.options.quorum
        if not isinstance(quorum, str) and quorum > trainers:
            raise ValueError(
                f'quorum: {quorum} given with {trainers} trainers; give at most {trainers}, or "half"'
            )

    def merge_terms(self, trainers: int) -> MergeTerms:
        """Return the options, for so many trainers that take part."""
        option = self.options.quorum
        quorum = (trainers + 1) // 2 if isinstance(option, str) else min(option, trainers)
        return MergeTerms(quorum, self.options.grace, self.options.longest_wait_seconds)

    def merge_rule(
        self, center: torch.Tensor, state: Mapping[str, torch.Tensor], mean: torch.Tensor, merge: Merge
    ) -> None:
        """Step the momentum, then the center."""
        total, squares = sum(merge.examples), sum(count * count for count in merge.examples)
        # Of whole numbers: exactly 1 if all trainers sent as many.
        share = total * total / (merge.trainers * squares)
        momentum = state["momentum"]
        momentum.mul_(self.options.momentum_of(merge.trainers, merge.number))
        center.add_(momentum.add_(mean, alpha=self.options.eta * share))
