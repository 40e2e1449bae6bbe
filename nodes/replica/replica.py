"""The context of a trainer's threads and processes; micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import JobFileError
from ...pipeline.models.constants import Constants
from ...pipeline.models.flat import FlatLayout
from ...pipeline.models.optimizers import MISSED, STATE_NAMES, SharedOptimizer
from ...pipeline.models.precision import Precision, find_precision
from ...pipeline.models.registry import build_model
from ...pipeline.types import Int64Array
from .buffer import FlatReplica, PrivateMemory, ReplicaMemory
from .device import CpuDevice, Device

_OTHER_EXAMPLES, _OWN_EXAMPLES, _RATIO = range(3)
_RATIO_UNIT = 1_000_000
_LARGEST_RATIO = 1e6


class ExampleCount:
    """The estimate of all trainers' examples, for learning-rate schedules.

    The coordinator sends its count with every heartbeat. In between, the other trainers are assumed to train
    in the last known proportion to this trainer, so that no clock is read. A single trainer counts only what
    its own workers trained: its schedule is exact and repeats bit for bit.

    `start` and `update` are for the control thread; any thread or worker process may call `now`. A mixture of
    an old and a new state is off by the examples of a heartbeat.

    Args:
        alone: whether the job has one trainer.
        state: int64 [3], zeros, in memory of all the trainer's processes: the others' examples, this
            trainer's examples at that time, and the proportion in millionths.
    """

    SIZE = 3

    def __init__(self, *, alone: bool, state: NDArray[np.int64]) -> None:
        self._alone = alone
        self._state = state

    def start(self, examples: int) -> None:
        """Start with the examples that a resumed run has trained."""
        self._state[_OTHER_EXAMPLES] = examples

    def update(self, total: int, trained: int) -> None:
        """Take over the coordinator's `total`, of which it confirmed `trained` to this trainer."""
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
        """Return all trainers' examples when this trainer's workers have trained `trained`."""
        ahead = int(self._state[_RATIO]) * max(0, trained - int(self._state[_OWN_EXAMPLES])) // _RATIO_UNIT
        return trained + int(self._state[_OTHER_EXAMPLES]) + ahead


@dataclass(frozen=True)
class ReplicaContext:
    """What the synchronization of a replica needs, whoever trains it.

    Attributes:
        iterations: steps of each thread that trains, int64 [workers], written by that thread only.
    """

    job: Job
    layout: FlatLayout
    replica: FlatReplica
    iterations: Int64Array

    def total_iterations(self) -> int:
        """Return the steps of all workers so far."""
        return int(self.iterations.sum())


@dataclass(frozen=True)
class TrainerContext(ReplicaContext):
    """The state that all threads of one trainer share.

    With `trainer.worker_kind = "process"`, its worker processes share it, too.

    Attributes:
        precision: the precision of the products of a training step.
        template: a module that workers copy; it never runs.
        constants: what training does not change of the module.
        iterations: batches trained by each worker, int64 [workers], written by that worker only.
        updates: dense updates done by each worker, int64 [workers], written by that worker only: as many as
            its iterations, unless batches are cut into micro-batches.
        examples: examples trained by each worker, int64 [workers], written by that worker only.
        count: examples trained by all trainers, for learning-rate schedules.
        micro_batches: number of micro-batches per batch.
        pause: whether workers wait before their next batch.
    """

    device: Device
    precision: Precision
    template: nn.Module
    constants: Constants
    optimizer: SharedOptimizer
    router: ShardRouter
    updates: Int64Array
    examples: Int64Array
    count: ExampleCount
    micro_batches: MicroBatchSetting
    pause: TrainingPause

    @classmethod
    def build(
        cls,
        job: Job,
        plan: TablePlan,
        memory: ReplicaMemory | None = None,
        label_rates: Sequence[float] = (),
    ) -> TrainerContext:
        """Build the context from the job.

        `plan` is the coordinator's: which embedding node has which rows; so is `label_rates`. Replica,
        optimizer state and counters are placed in `memory`. In a worker process they have the values that the
        trainer and its other workers have written since. Raises JobFileError for a model that cannot be
        built, or for a missing device.
        """
        memory = memory or PrivateMemory()
        device = find_device(job.trainer.device)
        template = build_model(job, label_rates)
        layout = FlatLayout(template)
        names = STATE_NAMES[job.trainer.optimizer]
        # Weights and state are in one buffer, so that both can be synchronized as one.
        first = torch.zeros((1 + len(names)) * layout.numel)
        first[: layout.numel] = layout.gather(template)
        buffer = memory.place(device.place(first))
        flat, state = buffer[: layout.numel], buffer[layout.numel :]
        optimizer = SharedOptimizer(job.trainer, flat, state, layout.spans, memory.counters(1))
        for name in ("step", MISSED):
            if name in optimizer.state:
                optimizer.state[name] = memory.place(optimizer.state[name])
        synchronized = buffer if job.sync.optimizer_state == "synchronized" else flat
        examples = memory.counters(job.trainer.workers)
        return cls(
            job=job,
            device=device,
            precision=find_precision(job.trainer.precision, device.torch_device),
            template=template,
            constants=Constants(template, lambda values: memory.place(device.place(values))),
            layout=layout,
            replica=device.replica(synchronized, examples, layout.numel),
            optimizer=optimizer,
            router=ShardRouter(plan, distinct=job.trainer.distinct_rows),
            iterations=memory.counters(job.trainer.workers),
            updates=memory.counters(job.trainer.workers),
            examples=examples,
            count=ExampleCount(alone=job.trainer.count == 1, state=memory.counters(ExampleCount.SIZE)),
            micro_batches=MicroBatchSetting(memory.counters(MicroBatchSetting.SIZE)),
            pause=TrainingPause(memory.counters(TrainingPause.SIZE)),
        )

    def total_updates(self) -> int:
        """Return the dense updates of all workers so far."""
        return int(self.updates.sum())


def find_device(name: str) -> Device:
    """Return the device that `trainer.device` names.

    "auto" is the first GPU, else the CPU. Raises JobFileError for a device that this machine does not have;
    the error names those that it has.
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


_UNIT = 1000


class MicroBatchSetting:
    """The mean number of micro-batches of a batch, for all workers.

    `set` is for the control thread; any thread or worker process may read.

    Args:
        state: int64 [1], zeros, in memory of all the trainer's processes: thousandths beyond one.
    """

    SIZE = 1

    def __init__(self, state: Int64Array) -> None:
        self._state = state

    @property
    def thousandths(self) -> int:
        """Return a thousand times the mean, at least 1000."""
        return _UNIT + int(self._state[0])

    @property
    def mean(self) -> float:
        """Return the micro-batches of a batch on average, at least 1."""
        return self.thousandths / _UNIT

    def set(self, mean: float) -> None:
        """Cut batches into so many micro-batches from now on.

        The number is at least 1; thousandths count.
        """
        self._state[0] = round(mean * _UNIT) - _UNIT


class TrainingPause:
    """Whether workers wait before their next batch.

    `set` is for the control thread; any thread or worker process may read.

    Args:
        state: int64 [2], zeros, in memory of all the trainer's processes: the numbers of the last pause that
            began, and of the last one that ended.
    """

    SIZE = 2

    def __init__(self, state: Int64Array) -> None:
        self._state = state

    @property
    def is_on(self) -> bool:
        """Whether workers wait."""
        return bool(self._state[0] > self._state[1])

    def set(self, number: int, paused: bool) -> None:
        """Begin or end the pause of this number.

        Numbers begin at 1 and rise. A pause that has ended does not begin again if a message comes late.
        """
        at = 0 if paused else 1
        self._state[at] = max(number, self._state[at])


class MicroBatchCounts:
    """Whole numbers of micro-batches for the batches of one worker, right on average.

    A batch has the micro-batches that are due, rounded down; what is left over is carried to the next one.
    """

    def __init__(self, setting: MicroBatchSetting) -> None:
        self._setting = setting
        self._carried = 0

    def next(self) -> int:
        """Return the micro-batches of the next batch, at least 1."""
        count, self._carried = divmod(self._setting.thousandths + self._carried, _UNIT)
        return count
