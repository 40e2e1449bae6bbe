"""A trainer's replica and what its threads share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..pipeline.config.job import Job
from ..pipeline.embedding.plan import TablePlan
from ..pipeline.embedding.routing import ShardRouter
from ..pipeline.models.flat import FlatLayout
from ..pipeline.models.optimizers import SharedOptimizer
from ..pipeline.models.registry import build_model
from ..sync_algos.base import Slice


class FlatReplica:
    """The flat float32 buffer [numel] that workers update lock-free; implements `Replica` of `sync_algos`.

    Snapshots and additions race with the workers element by element, which is the algorithm's way.
    """

    def __init__(self, flat: torch.Tensor, examples: list[int]) -> None:
        self.flat = flat
        self._examples = examples

    @property
    def numel(self) -> int:
        """Elements of the flat buffer."""
        return self.flat.numel()

    @property
    def whole(self) -> Slice:
        """All of it."""
        return Slice(0, self.flat.numel())

    @property
    def trained_examples(self) -> int:
        """Examples that the workers have trained since the job began."""
        return sum(self._examples)

    def snapshot(self, part: Slice) -> torch.Tensor:
        """A copy of a slice as it is now, in memory of its own."""
        return self.flat[part.start : part.stop].clone()

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """`w[part] += scale * delta` in place."""
        self.flat[part.start : part.stop].add_(delta, alpha=scale)

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """`w[part] <- (1 - rate) w[part] + rate * target` in place."""
        self.flat[part.start : part.stop].lerp_(target, rate)


@dataclass(frozen=True)
class Shared:
    """What all threads of one trainer share.

    Attributes:
        template: a module that workers copy; never run.
        iterations: steps done by each worker, written by that worker only.
        examples: examples trained by each worker, written by that worker only.
    """

    job: Job
    template: nn.Module
    layout: FlatLayout
    replica: FlatReplica
    optimizer: SharedOptimizer
    router: ShardRouter
    iterations: list[int]
    examples: list[int]

    @classmethod
    def build(cls, job: Job) -> Shared:
        """Everything from the job; raises JobFileError for a model that cannot be made."""
        template = build_model(job)
        layout = FlatLayout(template)
        flat = layout.gather(template)
        plan = TablePlan.make(job.table_rows, job.model.embedding_dim, job.embedding.nodes)
        examples = [0] * job.trainer.workers
        return cls(
            job=job,
            template=template,
            layout=layout,
            replica=FlatReplica(flat, examples),
            optimizer=SharedOptimizer(job.trainer, flat),
            router=ShardRouter(plan),
            iterations=[0] * job.trainer.workers,
            examples=examples,
        )

    def total_iterations(self) -> int:
        """Steps of all workers so far."""
        return sum(self.iterations)
