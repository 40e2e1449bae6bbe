"""Checkpoints of a hub's tables, as those of a job's embedding nodes.

Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...nodes.control.server import ControlServer
from ...pipeline.checkpoint.manifest import (
    CheckpointManifest,
    abandon,
    begin,
    commit,
    has_checkpoint,
    open_checkpoint,
)
from ...pipeline.config.job import Job
from ...pipeline.errors import ShadowSyncError
from ...pipeline.jobfile.load import validate_saved_job
from ...pipeline.text.wall_clock import timestamp
from ...pipeline.wire.control.orders import WriteCheckpoint
from ..tables_job import settings_of
from .checkpoint import TABLES
from .members import CLIENT, EMBEDDING
from .state import HubState
from .tables import HubTables

WRITE_SECONDS: Final = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedTables:
    """The tables of a checkpoint: its folder, and the job of its nodes."""

    folder: Path
    job: Job

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings of the tables as a module gives them."""
        return settings_of(self.job)

    @classmethod
    def find(cls, hub: Path, *, verify: bool = False) -> SavedTables | None:
        """Return the tables that a hub has saved, or None.

        `verify` also checks the SHA-256 of every file. Raises CheckpointError.
        """
        folder = (hub / TABLES).absolute()
        if not has_checkpoint(folder):
            return None
        _, manifest = open_checkpoint(folder, verify=verify)
        return cls(folder, validate_saved_job(manifest.job, where=str(folder)))


class TableCheckpoints:
    """Writer of the checkpoints of a hub's tables, into DIR/tables.

    Belongs to the hub's loop. Each embedding node writes its rows, their optimizer's state included, as of
    one moment between two pushes. Later checkpoints have only the rows that have changed, beside links to the
    files before.
    """

    def __init__(self, server: ControlServer, state: HubState, tables: HubTables) -> None:
        self._server, self._state, self._tables = server, state, tables
        self._writing = asyncio.Lock()
        self._is_current = False

    async def take(self) -> bool:
        """Take a checkpoint; return whether there is a new one.

        There is none without tables, or if no module has been there since the last one. A failure is logged,
        and the modules go on.
        """
        async with self._writing:
            nodes = self._state.members.alive(EMBEDDING)
            job = self._tables.job
            if job is None or len(nodes) < job.embedding.nodes:
                return False
            is_used = bool(self._state.members.alive(CLIENT))
            if self._is_current and not is_used:
                return False
            try:
                partial = await asyncio.to_thread(begin, (self._state.folder / TABLES).absolute())
            except ShadowSyncError as error:
                log.error("no checkpoint of the tables was written: %s", error)
                return False
            self._is_current = await self._fill(partial, job, yields=is_used) and not is_used
            return has_checkpoint(partial.parent)

    async def _fill(self, partial: Path, job: Job, *, yields: bool) -> bool:
        """Have the nodes write their parts; return whether that was possible."""
        nodes = self._state.members.alive(EMBEDDING)
        order = WriteCheckpoint(str(partial), "", running=True, yields=yields)
        replies = await self._server.call_all(nodes, order, WRITE_SECONDS)
        try:
            if len(replies) < job.embedding.nodes:
                raise ShadowSyncError("not all embedding nodes wrote their rows")
            files = [file for reply in replies.values() for file in reply.files]
            manifest = CheckpointManifest(
                created_at=timestamp(),
                run=self._state.folder.name,
                job=job.model_dump(mode="json"),
                job_digest=job.digest,
                model="",
                examples_trained=0,
                files=files,
                plan=self._tables.plan,
                ledger={},
            )
            await asyncio.to_thread(commit, partial, manifest)
        except ShadowSyncError as error:
            log.error("no checkpoint of the tables was written: %s", error)
            await asyncio.to_thread(abandon, partial)
            return False
        return True
