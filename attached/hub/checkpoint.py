"""Checkpoints of a hub: the one model, the book, the accounts of samples."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...nodes.control.divergence import CHUNK_ELEMENTS
from ...nodes.control.membership import Member
from ...nodes.control.server import ControlServer
from ...pipeline.atomic_file import unwritable, write_text
from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.manifest import check_files, has_checkpoint
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
_MODEL_FILE: Final = re.compile(r"model-(\d+)-\d+\.safetensors")

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
                await asyncio.to_thread(_write, self._state.folder / FOLDER, layout, values, content)
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


def _write(
    folder: Path, layout: Sequence[ParameterShape], values: Float32Array, content: dict[str, Any]
) -> None:
    """Write a checkpoint, and remove the one before it.

    Raises ResourceError if it cannot be written, JobFileError for numbers that are not finite.
    """
    tensors = {entry.name: values[place].reshape(entry.shape) for entry, place in places_of(layout)}
    try:
        folder.mkdir(exist_ok=True)
        names = (_MODEL_FILE.fullmatch(path.name) for path in folder.iterdir())
        before = max((int(name[1]) for name in names if name), default=0)
    except OSError as error:
        raise unwritable(folder, error) from error
    # Files of the checkpoint before stay until the manifest names the new ones.
    files = write_tensors(folder, f"model-{before + 1:06d}", tensors, {"role": "model"}, finite=True)
    write_text(
        folder / MANIFEST, json.dumps(content | {"files": [asdict(entry) for entry in files]}, indent=1)
    )
    _remove_others(folder, {MANIFEST, *(entry.name for entry in files)})


def _remove_others(folder: Path, kept: Set[str]) -> None:
    """Remove the files that a new checkpoint does not name; one that cannot be removed is logged."""
    for name in os.listdir(folder):
        path = folder / name
        # The root of a volume may have a folder of its own.
        if name in kept or path.is_dir():
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: is of no checkpoint any more, and cannot be removed (%s)", path, error)


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
        """Read the checkpoint of the hub of this folder.

        Raises CheckpointError for one that is absent, truncated or altered.
        """
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
        check_files(path.parent, files, verify=True)
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
