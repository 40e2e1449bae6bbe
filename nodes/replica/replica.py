"""A trainer's replica and what its threads share.

How many examples all trainers have trained, as one trainer knows it between two heartbeats.

In which precision a trainer multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import JobFileError
from ...pipeline.models.flat import FlatLayout
from ...pipeline.models.optimizers import SharedOptimizer
from ...pipeline.models.registry import build_model
from ...pipeline.types import Int64Array
from .buffer import FlatReplica, PrivateMemory, ReplicaMemory
from .device import CpuDevice, Device

_OTHER_EXAMPLES, _OWN_EXAMPLES, _RATIO = range(3)
_RATIO_UNIT = 1_000_000
_LARGEST_RATIO = 1e6


class ExampleCount:
    """The count that learning-rate schedules go by.

    The coordinator tells its count with every heartbeat. In between, the others are taken to train in the
    proportion to this trainer in which they did last, so that no clock is read. A trainer that is alone
    counts only what its own workers trained: its schedule is exact, and repeats bit for bit.

    `start` and `update` are for the control thread; any thread or worker process may call `now`. A mixture of
    an old and a new state is off by the examples of a heartbeat.

    Args:
        alone: whether the job has one trainer.
        state: int64 [3], zeros, where all of a trainer's processes see it: the others' examples, this
            trainer's at that time, and the proportion in millionths.
    """

    SIZE = 3

    def __init__(self, *, alone: bool, state: NDArray[np.int64]) -> None:
        self._alone = alone
        self._state = state

    def start(self, examples: int) -> None:
        """The job begins with so many examples that the run which it goes on with has trained."""
        self._state[_OTHER_EXAMPLES] = examples

    def update(self, total: int, trained: int) -> None:
        """The coordinator has `total` examples, `trained` of them confirmed to this trainer's workers."""
        if self._alone:
            return
        others = max(total - trained, int(self._state[_OTHER_EXAMPLES]))
        gained = trained - int(self._state[_OWN_EXAMPLES])
        if gained > 0:
            ratio = min(_LARGEST_RATIO, (others - int(self._state[_OTHER_EXAMPLES])) / gained)
            self._state[_RATIO] = round(ratio * _RATIO_UNIT)
            self._state[_OWN_EXAMPLES] = trained
        self._state[_OTHER_EXAMPLES] = others

    def now(self, trained: int) -> int:
        """All trainers' examples, when this trainer's workers have trained `trained`."""
        ahead = int(self._state[_RATIO]) * max(0, trained - int(self._state[_OWN_EXAMPLES])) // _RATIO_UNIT
        return trained + int(self._state[_OTHER_EXAMPLES]) + ahead


Precision: TypeAlias = Literal["float32", "bfloat16"]

# As `torch.cpu.get_capabilities` calls them: products of bfloat16 as instructions, not by way of float32.
_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


def find_precision(setting: Literal["auto", "float32", "bfloat16"], device: torch.device) -> Precision:
    """What `trainer.precision` means on this device: "auto" is bfloat16 where the device multiplies it by
    instructions of its own, and float32 elsewhere, where bfloat16 would only be slower."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    # Older versions of torch do not tell.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if any(capabilities.get(name) for name in _CPU_BFLOAT16) else "float32"


@dataclass(frozen=True)
class TrainerContext:
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
    def build(cls, job: Job, plan: TablePlan, memory: ReplicaMemory | None = None) -> TrainerContext:
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


def find_device(name: str) -> Device:
    """The device that `trainer.device` names; "auto" is the first GPU, and the CPU where there is none.

    Raises JobFileError for one that this machine does not have, naming those that it has.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return CpuDevice()
    index = int(name.partition(":")[2] or 0)
    if index >= gpus:
        there = ["cpu", *(f"cuda:{at} ({torch.cuda.get_device_name(at)})" for at in range(gpus))]
        built = "" if torch.version.cuda else "; this torch is built without CUDA"
        raise JobFileError(
            f"{name!r} given; this machine has: {', '.join(there)}{built}",
            where="trainer.device",
            remedy='give one of these, or "auto"',
        )
    from .cuda import CudaDevice, CudaStreams

    return CudaDevice(CudaStreams(index))
