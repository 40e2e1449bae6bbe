"""A trainer's replica and what its threads share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.routing import ShardRouter
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.models.flat import FlatLayout
from ...pipeline.models.optimizers import SharedOptimizer
from ...pipeline.models.registry import build_model
from ...pipeline.types import Int64Array
from .buffer import FlatReplica
from .device import Device, find_device
from .example_count import ExampleCount
from .precision import Precision, find_precision
from .replica_memory import PrivateMemory, ReplicaMemory


@dataclass(frozen=True)
class Shared:
    """What all threads of one trainer share, and with `trainer.worker_kind = "process"` all its processes.

    Attributes:
        precision: in which a training step multiplies.
        template: a module that workers copy; never run.
        iterations: steps done by each worker, int64 [workers], written by that worker only.
        examples: examples trained by each worker, int64 [workers], written by that worker only.
        count: those of all trainers, for the schedule of the rates.
    """

    job: Job
    device: Device
    precision: Precision
    template: nn.Module
    layout: FlatLayout
    replica: FlatReplica
    optimizer: SharedOptimizer
    router: ShardRouter
    iterations: Int64Array
    examples: Int64Array
    count: ExampleCount

    @classmethod
    def build(cls, job: Job, plan: TablePlan, memory: ReplicaMemory | None = None) -> Shared:
        """Everything from the job; raises JobFileError for a model that cannot be made, or a device that is
        not there.

        `plan` is the coordinator's: which embedding node has which rows.
        Replica, optimizer state and counters lie in `memory`. In a worker process they have the values that
        the trainer and its other workers have given them since.
        """
        memory = memory or PrivateMemory()
        device = find_device(job.trainer.device)
        template = build_model(job)
        layout = FlatLayout(template)
        flat = memory.place(device.place(layout.gather(template)))
        optimizer = SharedOptimizer(job.trainer, flat)
        optimizer.state.update({name: memory.place(value) for name, value in optimizer.state.items()})
        examples = memory.counters(job.trainer.workers)
        return cls(
            job=job,
            device=device,
            precision=find_precision(job.trainer.precision, device.torch_device),
            template=template,
            layout=layout,
            replica=device.replica(flat, examples),
            optimizer=optimizer,
            router=ShardRouter(plan, distinct=job.trainer.distinct_rows),
            iterations=memory.counters(job.trainer.workers),
            examples=examples,
            count=ExampleCount(alone=job.trainer.count == 1, state=memory.counters(ExampleCount.SIZE)),
        )

    def total_iterations(self) -> int:
        """Steps of all workers so far."""
        return int(self.iterations.sum())
