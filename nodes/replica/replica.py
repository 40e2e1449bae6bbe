"""The context of a trainer's threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ...pipeline.config.job import Job
from ...pipeline.embedding.in_flight.rows_in_flight import RowsInFlight
from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import JobFileError
from ...pipeline.models.built_in.two_tower import item_frequency_of
from ...pipeline.models.layers.item_frequency import ItemFrequency
from ...pipeline.models.precision import Precision, find_precision
from ...pipeline.models.registry import build_model, takes_jagged
from ...pipeline.models.training.constants import Constants
from ...pipeline.models.training.flat import FlatLayout
from ...pipeline.models.training.optimizers import STATE_NAMES, SharedOptimizer
from ...pipeline.types import Int64Array
from .buffer import FlatReplica
from .device import CpuDevice, Device

_RATIO_UNIT = 1_000_000
_LARGEST_RATIO = 1e6


class ExampleCount:
    """The estimate of all trainers' examples, for learning-rate schedules.

    The coordinator sends its count with every heartbeat. In between, the other trainers are assumed to train
    in the last known proportion to this trainer, so that no clock is read. A single trainer counts only what
    its own workers trained: its schedule is exact and repeats bit for bit.

    `start` and `update` are for the control thread; any thread may call `now`. A mixture of an old and a new
    state is off by the examples of a heartbeat.

    Args:
        alone: whether the job has one trainer.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._other_examples = 0
        self._own_examples = 0  # At that time.
        self._ratio = 0  # In millionths.

    def start(self, examples: int) -> None:
        """Start with the examples that a resumed run has trained."""
        self._other_examples = examples

    def update(self, total: int, trained: int) -> None:
        """Take over the coordinator's `total`, of which it confirmed `trained` to this trainer."""
        if self._alone:
            return
        others = max(total - trained, self._other_examples)
        gained = trained - self._own_examples
        if gained > 0:
            ratio = min(_LARGEST_RATIO, (others - self._other_examples) / gained)
            self._ratio = round(ratio * _RATIO_UNIT)
            self._own_examples = trained
        self._other_examples = others

    def now(self, trained: int) -> int:
        """Return all trainers' examples when this trainer's workers have trained `trained`."""
        ahead = self._ratio * max(0, trained - self._own_examples) // _RATIO_UNIT
        return trained + self._other_examples + ahead


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

    Attributes:
        precision: the precision of the products of a training step.
        template: a module that workers copy; it never runs.
        constants: what training does not change of the module.
        iterations: batches trained by each worker, int64 [workers], written by that worker only.
        examples: examples trained by each worker, int64 [workers], written by that worker only.
        count: examples trained by all trainers, for learning-rate schedules.
        item_frequency: of the items that this trainer's workers train on, for the in-batch softmax with a
            correction; else None.
        pause: whether workers wait before their next batch.
    """

    device: Device
    precision: Precision
    template: nn.Module
    constants: Constants
    optimizer: SharedOptimizer
    router: ShardRouter
    rows_in_flight: RowsInFlight | None
    examples: Int64Array
    count: ExampleCount
    item_frequency: ItemFrequency | None
    pause: TrainingPause

    @classmethod
    def build(
        cls,
        job: Job,
        plan: TablePlan,
        label_rates: Sequence[float] = (),
        index: int = 0,
    ) -> TrainerContext:
        """Build the context from the job.

        `plan` is the coordinator's: which embedding node has which rows; so is `label_rates`. `index` is the
        trainer's. Raises
        JobFileError for a model that cannot be built, or for a missing device.
        """
        device = find_device(job.trainer.device, index)
        template = build_model(job, label_rates)
        layout = FlatLayout(template)
        names = STATE_NAMES[job.trainer.optimizer]
        # Weights and state are in one buffer, so that both can be synchronized as one.
        first = torch.zeros((1 + len(names)) * layout.numel)
        first[: layout.numel] = layout.gather(template)
        buffer = device.place(first)
        flat, state = buffer[: layout.numel], buffer[layout.numel :]
        optimizer = SharedOptimizer(job.trainer, flat, state, layout.spans)
        synchronized = buffer if job.sync.optimizer_state == "synchronized" else flat
        examples = _counters(job.trainer.workers)
        return cls(
            job=job,
            device=device,
            precision=find_precision(job.trainer.precision, device.torch_device),
            template=template,
            constants=Constants(template, device.place),
            layout=layout,
            replica=device.replica(synchronized, examples, layout.numel),
            optimizer=optimizer,
            router=ShardRouter(plan, distinct=job.requests_distinct_rows, jagged=takes_jagged(job)),
            rows_in_flight=RowsInFlight(plan, job.run.seed) if job.exact_rows else None,
            iterations=_counters(job.trainer.workers),
            examples=examples,
            count=ExampleCount(alone=job.trainer.count == 1),
            item_frequency=item_frequency_of(job, template),
            pause=TrainingPause(),
        )

    def is_early(self) -> bool:
        """Return whether no worker is to look further ahead; any thread may ask. See `Job.start_examples`."""
        return self.count.now(self.replica.trained_examples) < self.job.start_examples

    def is_starting(self) -> bool:
        """Return whether one worker trains alone, since it is early and the rows have a warm-up."""
        return self.job.rows_warmup_examples > 0 and self.is_early()

    def has_begun(self, worker: int) -> bool:
        """Return whether this worker may train; any thread may ask. See `Job.begins_at`."""
        return self.count.now(self.replica.trained_examples) >= self.job.begins_at(worker)


def _counters(count: int) -> Int64Array:
    """Return int64 [count], zeros: any thread may read an element that one thread writes."""
    return np.zeros(count, dtype=np.int64)


def find_device(name: str, index: int = 0) -> Device:
    """Return the device that `trainer.device` names, for the trainer with this index.

    "cuda" is one of the GPUs, by the index, so that trainers of one machine have one each; "auto" is the
    same, and the CPU where there is no GPU. Raises JobFileError for a device that this machine does not have;
    the error names those that it has.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return CpuDevice()
    number = name.partition(":")[2]
    device = int(number) if number else index % max(1, gpus)
    if device >= gpus:
        devices = [
            "cpu",
            *(f"cuda:{gpu} ({torch.cuda.get_device_name(gpu)})" for gpu in range(gpus)),
        ]
        built = "" if torch.version.cuda else "; this torch is built without CUDA"
        raise JobFileError(
            f"{name!r} given; this machine has: {', '.join(devices)}{built}",
            where="trainer.device",
            remedy='give one of these, or "auto"',
        )
    from .cuda import CudaDevice
    from .streams import CudaStreams

    return CudaDevice(CudaStreams(device))


class TrainingPause:
    """Whether workers wait before their next batch.

    `set` is for the control thread; any thread may read.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._ended = 0

    @property
    def is_on(self) -> bool:
        """Whether workers wait."""
        return self._begun > self._ended

    def set(self, number: int, paused: bool) -> None:
        """Begin or end the pause of this number.

        Numbers begin at 1 and rise. A pause that has ended does not begin again if a message comes late.
        """
        if paused:
            self._begun = max(number, self._begun)
        else:
            self._ended = max(number, self._ended)
