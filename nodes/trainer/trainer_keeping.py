"""A trainer's part of a checkpoint, and what it takes over from one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.errors import JobFileError
from ...sync_algos.base import Algorithm
from ..replica.replica import Shared
from .checkpoint import (
    TrainerSnapshot,
    compose_model,
    files_body,
    write_algorithm,
    write_dense,
    write_trainer,
)

Snapshots = Callable[[Callable[[], TrainerSnapshot]], Awaitable[TrainerSnapshot]]
Model = Callable[[str], Awaitable[torch.Tensor | None]]


class TrainerKeeping:
    """Runs on the control thread; copies and writes are made on others.

    Args:
        snapshots: runs the copying where no round writes the algorithm's state meanwhile.
        model: the model that comes out, once training has ended.
    """

    def __init__(
        self, shared: Shared, algorithm: Algorithm, index: int, snapshots: Snapshots, model: Model
    ) -> None:
        self._shared = shared
        self._algorithm = algorithm
        self._index = index
        self._snapshots = snapshots
        self._model = model

    @property
    def bytes(self) -> int:
        """Of this trainer's own part of a checkpoint: its replica and its optimizer's state."""
        state = sum(value.nbytes for value in self._shared.optimizer.state.values())
        return int(self._shared.replica.numel * torch.float32.itemsize + state)

    async def checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        """Writes this trainer's files into `directory`; with `dense` also the algorithm's state and the model
        that `model` names: the one that comes out after training, and while training goes on (`running`) only
        if this trainer alone can tell it. Raises JobFileError for numbers that are not finite: they take no
        good checkpoint's place; but where the model that came out is finite, only this trainer's own part is
        left out. The answer's `ready` is whether the model could be had."""
        directory, origin = Path(str(body["directory"])), str(body["model"])
        running, dense = bool(body.get("running")), None
        if body.get("dense") and not running:
            dense = await self._model(origin)
            if dense is None:
                return {"files": [], "ready": False}
        snapshot = await self._snapshots(lambda: TrainerSnapshot.take(self._shared, self._algorithm))
        sound = _are_finite(snapshot.replica, *snapshot.optimizer.values())
        if not sound and dense is None:
            raise self._unsound("the replica, or the optimizer's state,")
        if body.get("dense") and running:
            dense = snapshot.model(origin)
        if dense is not None and not _are_finite(dense):
            raise self._unsound("the model")

        def write() -> list[FileEntry]:
            entries = write_trainer(directory, self._index, snapshot) if sound else []
            if dense is not None:
                # On a device of its own until now, if it is the replica itself.
                entries += write_dense(directory, self._shared.layout, dense.to("cpu"), origin)
            if body.get("dense") and sound:
                entries += write_algorithm(directory, snapshot.state)
            return entries

        return {"files": files_body(await asyncio.to_thread(write)), "ready": True}

    def _unsound(self, what: str) -> JobFileError:
        return JobFileError(
            f"{what} of trainer-{self._index} has numbers that are not finite",
            where="trainer.lr",
            remedy="lower it, or embedding.lr",
        )

    async def compose(self, body: dict[str, Any]) -> dict[str, Any]:
        """Writes the single model that the `files` in `directory` make, see `compose_model`."""
        directory, origin = Path(str(body["directory"])), str(body["model"])
        given = [FileEntry(**entry) for entry in body["files"]]

        def write() -> list[FileEntry]:
            flat = compose_model(directory, given, origin, self._shared.layout.numel)
            return write_dense(directory, self._shared.layout, flat, origin)

        return {"files": files_body(await asyncio.to_thread(write))}


def _are_finite(*tensors: torch.Tensor) -> bool:
    """Whether all numbers are. Their sum is finite only then; in float64, so that large ones do not overflow
    it."""
    return all(math.isfinite(tensor.sum(dtype=torch.float64)) for tensor in tensors)
