"""The model that is served, and how it follows the checkpoints of a run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TypeAlias

from ..pipeline.checkpoint.manifest import CheckpointManifest, Which
from ..pipeline.checkpoint.saved import Location, open_saved
from ..pipeline.checkpoint.store.contract import StorageError
from ..pipeline.errors import ResourceError, ShadowSyncError, describe
from ..pipeline.models.precision import Precision
from ..pipeline.saved_model.model import SavedModel
from ..pipeline.text.format import counted, data_size, duration
from ..pipeline.text.wall_clock import unix_seconds
from .items import Items
from .retrieval import Retriever
from .scores import ServedModel

log = logging.getLogger(__name__)

Between: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]


class FollowedModel:
    """The model of a run's checkpoint, and the newest one if `follow` runs.

    Where a checkpoint says which rows changed, only those are read, and replaced in the memory of the served
    model, between two batches of requests. Otherwise the new model is opened beside the old one, which is
    served until then: memory for two models is needed. A model with items is always opened beside the old
    one, and its items' vectors are computed there: vectors of queries and of items are of one model.

    `announce` gets a line for each new model. `precision` is that of the matrix products; `items` says which
    items are retrieved; `trust` and `memory_bytes` as of `SavedModel.open`, which says what is raised, and
    `Items.of_first`. Belongs to one loop.
    """

    def __init__(
        self,
        path: Location,
        which: Which,
        announce: Callable[[str], None] = log.info,
        precision: Precision = "float32",
        *,
        items: Items | None = None,
        trust: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        self._path, self._which, self._announce = path, which, announce
        self._precision, self._trust, self._items = precision, trust, items
        self._memory_bytes = memory_bytes
        model = SavedModel.open(path, which, precision, trust=trust, memory_bytes=memory_bytes)
        self.current = ServedModel(model)
        self.retriever = None if items is None else Retriever(model, items.of_first(model))
        self.opened = 1
        self.fault = ""
        self._damaged: CheckpointManifest | None = None

    @property
    def manifest(self) -> CheckpointManifest:
        """The manifest of the served checkpoint."""
        return self.current.model.manifest

    @property
    def age_seconds(self) -> float:
        """Seconds since the served checkpoint was written, by this machine's clock."""
        return unix_seconds() - datetime.fromisoformat(self.manifest.created_at).timestamp()

    async def follow(self, every_seconds: float, between: Between) -> None:
        """Serve each new checkpoint, until cancelled.

        `between` does what it is given while no request is answered.

        A checkpoint that cannot be opened, whatever the reason, is logged, and the old model is served. It is
        tried again if a storage, memory or the disk may be the reason.
        """
        while True:
            await asyncio.sleep(every_seconds)
            try:
                newest = await asyncio.to_thread(self._newest_manifest)
                if newest == self.manifest:
                    self.fault = ""
                elif newest != self._damaged:
                    await self._switch(newest, between)
            except Exception as error:
                if (fault := describe(error)) != self.fault:
                    unforeseen = not isinstance(error, ShadowSyncError | MemoryError)
                    log.warning("the previous model is still served: %s", fault, exc_info=unforeseen)
                self.fault = fault

    def _newest_manifest(self) -> CheckpointManifest:
        return open_saved(self._path, which=self._which)[1]

    async def _switch(self, newest: CheckpointManifest, between: Between) -> None:
        since = time.monotonic()
        switch = self._with_rows if self._items is None else partial(self._with_items, self._items)
        try:
            apply, how = await asyncio.to_thread(switch)
        except Exception as error:
            # Also where its items cannot be had: they are not computed again and again.
            if not isinstance(error, StorageError | ResourceError | MemoryError):
                self._damaged = newest
            raise
        await between(apply)
        self.fault = ""
        self.opened += 1
        took = duration(time.monotonic() - since)
        self._announce(f"now {self.current.model.description}, opened in {took}{how}")

    def _with_rows(self) -> tuple[Callable[[], None], str]:
        """Read a new checkpoint; return what serves it, and what was done, in words."""
        served = self.current
        update = served.model.update(self._path, self._which)

        def apply() -> None:
            model = update.apply()
            self.current = ServedModel(model, served.schema if update.in_place else None)

        return apply, f", {data_size(update.changed_bytes)} of rows in place" if update.in_place else ""

    def _with_items(self, items: Items) -> tuple[Callable[[], None], str]:
        """Read a new checkpoint beside the served one, and make its items; return as `_with_rows`."""
        model = SavedModel.open(
            self._path, self._which, self._precision, trust=self._trust, memory_bytes=self._memory_bytes
        )
        served, retriever = ServedModel(model), Retriever(model, items.of_next(model))

        def apply() -> None:
            self.current, self.retriever = served, retriever

        return apply, f", {counted(len(retriever.items), 'item')} with it"
