"""A trainer's part of a checkpoint: snapshot and files."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.manifest import AVERAGE, DENSE
from ...pipeline.checkpoint.reader import TensorReader
from ...pipeline.checkpoint.saved import Place, parts_place
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.checkpoint.store.contract import PartTarget
from ...pipeline.errors import CheckpointError, JobFileError
from ...pipeline.models.training.constants import Constants
from ...pipeline.models.training.flat import FlatLayout
from ...pipeline.models.training.optimizers import EMA
from ...pipeline.text.format import count
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.orders import ComposeModel, WriteCheckpoint, WriteCheckpointReply
from ...sync_algos.base import Algorithm, AlgorithmState
from ...sync_algos.contract.model_origin import ModelOrigin
from ..replica.replica import TrainerContext

OPTIMIZER_PREFIX = "optimizer."
ITEMS_PREFIX = "items."


@dataclass(frozen=True)
class TrainerSnapshot:
    """Copies of a trainer's state in the host's memory.

    All copies but the iterations and items are float32 [numel], and nobody changes them.

    Attributes:
        items: the state of the items' frequency, see `ItemFrequency.state`; {} without one.
        state: the algorithm's state, with the tensors of its `state_names`.
        global_model: the global model of an algorithm that has one.
    """

    replica: torch.Tensor
    optimizer: dict[str, torch.Tensor]
    items: dict[str, NDArray[Any]]
    iterations: tuple[int, ...]
    state: AlgorithmState
    global_model: torch.Tensor | None

    @classmethod
    def take(cls, context: TrainerContext, algorithm: Algorithm) -> TrainerSnapshot:
        """Copy the current state of a trainer.

        Workers may train meanwhile: each element has its value at some moment of the copy, as in any snapshot
        of a round. Call it where no round writes the algorithm's state.
        """
        state = algorithm.state()
        tensors = {name: value.clone() for name, value in state.tensors.items()}
        has_global = algorithm.model.value == ModelOrigin.GLOBAL
        global_model = algorithm.global_model()[: context.layout.numel].clone() if has_global else None
        optimizer = dict(context.optimizer.state)
        if EMA in optimizer:
            optimizer[EMA] = context.optimizer.averaged()
        return cls(
            replica=context.replica.snapshot(context.replica.weights),
            optimizer={name: v.detach().to("cpu", copy=True) for name, v in optimizer.items()},
            items={} if context.item_frequency is None else context.item_frequency.state(),
            iterations=tuple(int(count) for count in context.iterations),
            state=AlgorithmState(state.completed_rounds, tensors),
            global_model=global_model,
        )

    def model(self, origin: str) -> torch.Tensor | None:
        """Return the final model if a single trainer has it."""
        models = {ModelOrigin.REPLICAS.value: self.replica, ModelOrigin.GLOBAL.value: self.global_model}
        return models.get(origin)


def write_trainer(directory: Path | PartTarget, index: int, snapshot: TrainerSnapshot) -> list[FileEntry]:
    """Write trainer `index`'s replica, optimizer state and items' frequency.

    Any thread may call; raises ResourceError.
    """
    name = f"trainer-{index}"
    moments = {f"{OPTIMIZER_PREFIX}{key}": value.numpy() for key, value in snapshot.optimizer.items()}
    items = {f"{ITEMS_PREFIX}{key}": values for key, values in snapshot.items.items()}
    tensors = {"replica": snapshot.replica.numpy(), **moments, **items}
    metadata = {"role": name, "iterations": ",".join(map(str, snapshot.iterations))}
    return write_tensors(directory, name, tensors, metadata)


def write_algorithm(directory: Path | PartTarget, state: AlgorithmState) -> list[FileEntry]:
    """Write the algorithm's state, if it has any.

    Any thread may call; raises ResourceError.
    """
    if not state.tensors:
        return []
    tensors = {key: value.numpy() for key, value in state.tensors.items()}
    metadata = {"role": "algorithm", "completed_rounds": str(state.completed_rounds)}
    return write_tensors(directory, "algorithm", tensors, metadata)


def write_dense(
    directory: Path | PartTarget,
    layout: FlatLayout,
    dense: torch.Tensor,
    source: str,
    constants: Constants | None = None,
    role: str = DENSE,
) -> list[FileEntry]:
    """Write a model, `dense` float32 [numel], by parameter name, and its constants.

    `source` is part of the file's name, since a second model, or another trainer's, may be requested while
    the first is still being written; `role` is DENSE, or AVERAGE. Any thread may call; raises ResourceError.
    """
    named = {span.name: view.numpy() for span, view in layout.views(dense)}
    if constants is not None:
        named |= {name: value.cpu().numpy() for name, value in constants.named().items()}
    return write_tensors(directory, f"{role}-{source}", named, {"role": role})


def compose_model(directory: Place, entries: Iterable[FileEntry], origin: str, numel: int) -> torch.Tensor:
    """Compose the model, float32 [numel], from the files of an unfinished checkpoint.

    The model is joined from the slices of the center, or is the mean of the replicas; AVERAGE is the mean of
    the trainers' moving averages, which is that of the replicas' mean if trainers make as many steps. So it
    matches exactly what is saved, and needs no round. Raises CheckpointError if the files lack a part
    of it.
    """
    files = list(entries)
    if origin == ModelOrigin.CENTER:
        parts = _center(directory, files, numel)
    else:
        name = f"{OPTIMIZER_PREFIX}{EMA}" if origin == AVERAGE else "replica"
        parts = _mean(directory, files, numel, name)
    if parts.shape != (numel,):
        raise CheckpointError(
            f"the files make a model of {len(parts)} elements, not {numel}", where=str(directory)
        )
    return torch.from_numpy(parts)


def _center(directory: Place, files: list[FileEntry], numel: int) -> Float32Array:
    whole, covered = np.empty(numel, np.float32), 0
    for role in sorted({entry.role for entry in files if entry.role.startswith("sync-")}):
        own_files = [entry for entry in files if entry.role == role]
        reader = TensorReader(directory, own_files)
        start = int(reader.metadata[own_files[0].name]["start"])
        values = reader.read("center")
        whole[start : start + len(values)] = values
        covered += len(values)
    if covered != numel:
        raise CheckpointError(
            f"sync nodes saved {count(covered)} of the model's {count(numel)} elements; one that was just "
            "replaced has none yet",
            where=str(directory),
        )
    return whole


def _mean(directory: Place, files: list[FileEntry], numel: int, name: str) -> Float32Array:
    roles = sorted({entry.role for entry in files if entry.role.startswith("trainer-")})
    if not roles:
        raise CheckpointError("no replica was saved, so there is no mean", where=str(directory))
    total = np.zeros(numel, np.float64)
    for role in roles:
        total += TensorReader(directory, [e for e in files if e.role == role]).read(name)
    return (total / len(roles)).astype(np.float32)


Snapshots = Callable[[Callable[[], TrainerSnapshot]], Awaitable[TrainerSnapshot]]
Model = Callable[[str], Awaitable[torch.Tensor | None]]


class TrainerCheckpoint:
    """Write a trainer's part of checkpoints.

    Runs on the control thread; copies and writes run on others.

    Args:
        snapshots: runs the copying where no round writes the algorithm's state meanwhile.
        model: returns the final model, once training has ended.
    """

    def __init__(
        self, context: TrainerContext, algorithm: Algorithm, index: int, snapshots: Snapshots, model: Model
    ) -> None:
        self._context = context
        self._algorithm = algorithm
        self._index = index
        self._snapshots = snapshots
        self._model = model

    @property
    def bytes(self) -> int:
        """Bytes of this trainer's part of a checkpoint, its replica, optimizer state and items' frequency."""
        state = sum(value.nbytes for value in self._context.optimizer.state.values())
        frequency = self._context.item_frequency
        items = 0 if frequency is None else frequency.nbytes
        return int(self._context.layout.numel * torch.float32.itemsize + state + items)

    async def checkpoint(self, request: WriteCheckpoint) -> WriteCheckpointReply:
        """Write this trainer's files into `directory`.

        With `dense` also writes the algorithm's state and the model that `model` names: the final one after
        training, and during training (`running`) only a model that this trainer alone has. Raises
        JobFileError for non-finite values, so that they replace no good checkpoint. If the final model is
        finite, only this trainer's part is omitted. The reply's `ready` says whether the model was available.
        """
        origin, running, dense = request.model, request.running, None
        if request.dense and not running:
            dense = await self._model(origin)
            if dense is None:
                return WriteCheckpointReply((), ready=False)
        snapshot = await self._snapshots(lambda: TrainerSnapshot.take(self._context, self._algorithm))
        finite = _are_finite(snapshot.replica, *snapshot.optimizer.values())
        if not finite and dense is None:
            raise self._not_finite_error("the replica, or the optimizer's state,")
        if request.dense and running:
            dense = snapshot.model(origin)
        if dense is not None and not _are_finite(dense):
            raise self._not_finite_error("the model")

        def write() -> list[FileEntry]:
            directory = part_target(request.directory, yields=request.yields)
            entries = write_trainer(directory, self._index, snapshot) if finite else []
            if dense is not None:
                # The replica itself may be on a device.
                context = self._context
                source = f"{origin}-{self._index}"
                entries += write_dense(directory, context.layout, dense.to("cpu"), source, context.constants)
            if request.dense and finite:
                entries += write_algorithm(directory, snapshot.state)
            return entries

        return WriteCheckpointReply(tuple(await asyncio.to_thread(write)))

    def _not_finite_error(self, what: str) -> JobFileError:
        return JobFileError(
            f"{what} of trainer-{self._index} has numbers that are not finite",
            where="trainer.lr",
            remedy="lower trainer.lr or embedding.lr",
        )

    async def compose(self, request: ComposeModel) -> WriteCheckpointReply:
        """Write the single model composed of the `files` in `directory`; see `compose_model`."""
        origin, files = request.model, list(request.files)

        def write() -> list[FileEntry]:
            layout, synchronized = self._context.layout, self._context.replica.numel
            # A center may hold the optimizer's state after the weights.
            numel = synchronized if origin == ModelOrigin.CENTER else layout.numel
            flat = compose_model(parts_place(request.directory), files, origin, numel)
            target = part_target(request.directory, yields=request.yields)
            dense, constants = flat[: layout.numel], self._context.constants
            if origin == AVERAGE:
                return write_dense(target, layout, dense, "mean", constants, role=AVERAGE)
            return write_dense(target, layout, dense, origin, constants)

        return WriteCheckpointReply(tuple(await asyncio.to_thread(write)))


def _are_finite(*tensors: torch.Tensor) -> bool:
    """Return whether all numbers are finite.

    Only then their sum is finite; it is in float64, so that large numbers do not overflow it.
    """
    return all(math.isfinite(tensor.sum(dtype=torch.float64)) for tensor in tensors)
