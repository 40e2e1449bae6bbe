"""Checkpoints of a hub: the one model, the book, the accounts of samples."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...nodes.control.divergence import CHUNK_ELEMENTS
from ...nodes.control.membership import Member
from ...nodes.control.server import ControlServer
from ...pipeline.atomic_file import atomic_file
from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.manifest import has_checkpoint
from ...pipeline.checkpoint.reader import TensorReader
from ...pipeline.errors import CheckpointError, ShadowSyncError
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.loops import ParameterShape
from ...pipeline.wire.control.orders import ReadReplica
from .state import HubState, elements_of, places_of

FOLDER: Final = "checkpoint"
TABLES: Final = "tables"
MANIFEST: Final = "checkpoint.json"
SINGLE_MODEL: Final = "single model"
"""The name by which `ReadReplica` asks a loop for the model that the algorithm makes of all loops."""

_REQUEST_SECONDS = 60.0
_VERSION: Final = 1

log = logging.getLogger(__name__)


class HubCheckpoints:
    """Writer of a hub's checkpoints, into DIR/checkpoint; each replaces the one before.

    Belongs to the hub's loop. A manifest, which is written last, names the files; so there is always a whole
    checkpoint.

    Args:
        read_center: returns the center, float32 [numel]; None before it has a value.
    """

    def __init__(
        self,
        server: ControlServer,
        state: HubState,
        read_center: Callable[[], Awaitable[Float32Array | None]],
    ) -> None:
        self._server, self._state, self._read_center = server, state, read_center
        self._writing = asyncio.Lock()

    async def run(self, seconds: float, save_tables: Callable[[], Awaitable[object]]) -> None:
        """Take a checkpoint every `seconds` while there are loops, until cancelled.

        `save_tables` takes that of the tables, just before.
        """
        while True:
            await asyncio.sleep(seconds)
            await save_tables()
            if self._state.loops:
                await self.take()

    async def take(self) -> bool:
        """Take a checkpoint; return whether that was possible.

        A failure is logged, and the loops go on.
        """
        async with self._writing:
            # Taken before the model is: what the accounts say is trained is in the replicas.
            saved, book = self._state.saved(), self._state.book()
            layout = self._state.layout
            model, values = await self._model()
            if values is None or layout is None:
                return False
            content = {"version": _VERSION, "model": model, "state": saved, "book": asdict(book)}
            try:
                await asyncio.to_thread(self._write, layout, values, content)
            except ShadowSyncError as error:
                log.error("no checkpoint was written: %s", error)
                return False
            return True

    async def _model(self) -> tuple[str, Float32Array | None]:
        """Return where the saved model comes from (an origin, or a loop's name), and its values [numel]."""
        origin = next((member.facts.model_origin for member in self._state.members.everyone("trainer")), "")
        if origin == "center":
            return origin, await self._read_center()
        loops = self._state.loops
        if origin == "mean":
            return origin, await self._mean(loops)
        for loop in loops:
            name = SINGLE_MODEL if origin == "global" else ""
            if (values := await self._read(loop, name)) is not None:
                return (origin, values) if name else (loop.info.name, values)
        return origin, None

    async def _mean(self, loops: Sequence[Member]) -> Float32Array | None:
        replies = await asyncio.gather(*(self._read(loop, "") for loop in loops))
        replicas = [values for values in replies if values is not None]
        return np.mean(replicas, axis=0, dtype=np.float32) if replicas else None

    async def _read(self, loop: Member, name: str) -> Float32Array | None:
        """Read a loop's replica or single model, in chunks."""
        elements, chunks = loop.facts.dense_elements, []
        for start in range(0, elements, CHUNK_ELEMENTS):
            read = ReadReplica(start, min(start + CHUNK_ELEMENTS, elements), name)
            reply = await self._server.call(loop, read, _REQUEST_SECONDS)
            if reply is None:
                return None
            chunks.append(np.frombuffer(reply.values, dtype=np.float32))
        return np.concatenate(chunks) if chunks else None

    def _write(self, layout: Sequence[ParameterShape], values: Float32Array, content: dict[str, Any]) -> None:
        folder = self._state.folder / FOLDER
        folder.mkdir(exist_ok=True)
        tensors = {entry.name: values[place].reshape(entry.shape) for entry, place in places_of(layout)}
        before = [int(path.name[6:12]) for path in folder.glob("model-[0-9]*.safetensors")]
        # Files of the checkpoint before stay until the manifest names the new ones.
        stem = f"model-{max(before, default=0) + 1:06d}"
        files = write_tensors(folder, stem, tensors, {"role": "model"}, finite=True)
        with atomic_file(folder / MANIFEST) as file:
            file.write(json.dumps(content | {"files": [asdict(entry) for entry in files]}, indent=1).encode())
        kept = {MANIFEST, *(entry.name for entry in files)}
        for path in folder.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class SavedModel:
    """What a checkpoint of a hub has.

    Attributes:
        layout: names and shapes of the parameters, in order.
        values: their values as in a loop's flat buffer, float32 [numel].
        state: what the hub knew, by key of its ledger.
    """

    layout: tuple[ParameterShape, ...]
    values: Float32Array
    state: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> SavedModel:
        """Read the checkpoint of the hub of this folder; raises CheckpointError."""
        path = folder / FOLDER / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != _VERSION:
                raise CheckpointError(
                    f"has version {content['version']}; this program reads {_VERSION}", where=str(path)
                )
            files = [FileEntry(**entry) for entry in content["files"]]
            layout = tuple(ParameterShape(name, tuple(shape)) for name, shape in content["state"]["layout"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"there is no checkpoint of a hub ({error})",
                where=str(folder),
                remedy="give the folder of a hub that was started with --checkpoint-every",
            ) from error
        reader = TensorReader(path.parent, files)
        places = places_of(layout)
        values = np.zeros(elements_of(layout), dtype=np.float32)
        for entry, place in places:
            values[place] = np.asarray(reader.read(entry.name), dtype=np.float32).reshape(-1)
        return cls(layout, values, content["state"])


def saved_model_of(folder: Path) -> SavedModel | None:
    """Return the model that the hub of this folder has saved.

    Returns None if it has saved tables only. Raises CheckpointError if it has saved neither.
    """
    if not (folder / FOLDER / MANIFEST).exists() and has_checkpoint(folder / TABLES):
        return None
    return SavedModel.read(folder)
