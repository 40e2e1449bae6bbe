"""A hub from its address to its end, with its sync nodes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...nodes.coordinator.monitoring.monitoring import Monitoring
from ...nodes.runtime.main_loop import run_pause_aware
from ...nodes.runtime.process import ProcessHooks
from ...nodes.runtime.role import Role
from ...nodes.runtime.settings import NodeSettings
from ...nodes.sync.role import SyncRole
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.loops import LoopsReply
from ..node_thread import NodeThread, ThreadHooks
from .checkpoint import HubCheckpoints, saved_model_of
from .hosted import hosted_node
from .ledger import BOUND, LOOP_PREFIX, HubLedger
from .server import HubServer
from .status import hub_status
from .table_checkpoints import SavedTables, TableCheckpoints

END_SECONDS = 10.0


async def serve_hub(
    settings: NodeSettings,
    announce: Callable[[str, str], None],
    *,
    until_empty: bool = False,
    expected: int = 1,
    process: ProcessHooks | None = None,
    checkpoint_seconds: float = 0.0,
    resume: Path | None = None,
) -> LoopsReply:
    """Serve loops until the end; return the book of steps.

    The end is an interrupt, or with `until_empty` that the last of at least `expected` loops has left.
    `announce` is called with the address to join, and that of the page, "" without one. Raises ClusterError
    for an address that cannot be used, and the error of a sync node that failed.

    With `checkpoint_seconds` a checkpoint is written that often into the hub's folder, and at the end. With
    `resume`, the folder of a hub with a checkpoint, the loops begin with that.
    """
    ledger, saved = await asyncio.to_thread(_open_ledger, settings)
    server = HubServer(
        settings, until_empty=until_empty, expected=expected, process=process, ledger=ledger, saved=saved
    )
    # A hub whose place is taken may have died before a loop took the model.
    begins = not any(key.startswith(LOOP_PREFIX) for key in saved)
    if resume is not None and begins and (model := await asyncio.to_thread(saved_model_of, resume)):
        server.state.resume(model.layout, model.values, model.state)
    if (tables := await asyncio.to_thread(_saved_tables, settings.recover, resume)) is not None:
        server.tables.resume(tables.job, tables.wanted, tables.folder)
    tables_saved = TableCheckpoints(server, server.state, server.tables)
    watching = Monitoring(server, partial(hub_status, server.state), "hub")
    nodes: list[NodeThread[Role]] = []
    try:
        endpoint = server.listen(saved.get(BOUND, ""))
        await server.save({BOUND: server.bound})
        watching.open()
        server.start()
        server.spawn(watching.run())
        for index in range(settings.job.sync_nodes):
            nodes.append(hosted_node("sync", server.settings, server.bound, index))
            await asyncio.to_thread(nodes[-1].start)
        if checkpoint_seconds:
            checkpoints = HubCheckpoints(server, server.state, partial(_center, nodes))
            server.checkpoint = checkpoints.take
            server.spawn(checkpoints.run(checkpoint_seconds, tables_saved.take))
        announce(endpoint, server.state.page)
        await server.over()
        if checkpoint_seconds:
            # The nodes of the tables outlive the last module.
            await tables_saved.take()
    finally:
        if server.bound:
            await server.finish()
        await asyncio.gather(*(asyncio.to_thread(node.join, END_SECONDS) for node in nodes))
        await server.tables.close()
        await server.close()
        await watching.close()
        if ledger is not None:
            await asyncio.to_thread(ledger.close)
    return server.state.book()


def _open_ledger(settings: NodeSettings) -> tuple[HubLedger | None, dict[str, Any]]:
    """Return the hub's ledger, and what a dead hub has recorded in it."""
    if settings.recover is not None:
        ledger = HubLedger.open(settings.recover)
        return ledger, ledger.read()
    return (HubLedger(settings.folder, new=True) if settings.folder is not None else None), {}


def _saved_tables(*hubs: Path | None) -> SavedTables | None:
    """Return the tables of the first of these folders that has any."""
    return next((found for one in hubs if one is not None and (found := SavedTables.find(one))), None)


async def _center(nodes: Sequence[NodeThread[Role]]) -> Float32Array | None:
    """Return the center, float32 [numel]; None before it has a value."""
    slices = [await asyncio.wrap_future(_slice_of(node)) for node in nodes]
    values = [one for one in slices if one is not None]
    # With more nodes than elements, the last ones hold nothing.
    return np.concatenate(values) if values else None


def _slice_of(node: NodeThread[Role]) -> concurrent.futures.Future[Float32Array | None]:
    role = node.role
    assert isinstance(role, SyncRole)
    return node.submit(role.slice_values)


class HubThread:
    """A hub as a thread of this process.

    Attributes:
        endpoint, page: the address to join, and that of the page, once `start` has returned.
        book: the book of steps, once it has ended.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        until_empty: bool = False,
        expected: int = 1,
        checkpoint_seconds: float = 0.0,
        resume: Path | None = None,
    ) -> None:
        self._settings, self._until_empty, self._expected = settings, until_empty, expected
        self._checkpoint_seconds, self._resume = checkpoint_seconds, resume
        self._announced: concurrent.futures.Future[tuple[str, str]] = concurrent.futures.Future()
        self._hooks = _StoppableHooks()
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self.endpoint = self.page = ""
        self.book: LoopsReply | None = None

    def start(self) -> str:
        """Start the hub; return the address to join. Raises what `serve_hub` raises."""
        self._thread.start()
        self.endpoint, self.page = self._announced.result()
        return self.endpoint

    def stop(self) -> None:
        """End the hub; any thread may call."""
        self._hooks.interrupt()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the end; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.book = run_pause_aware(
                serve_hub(
                    self._settings,
                    lambda *where: self._announced.set_result(where),
                    until_empty=self._until_empty,
                    expected=self._expected,
                    checkpoint_seconds=self._checkpoint_seconds,
                    resume=self._resume,
                    process=self._hooks,
                )
            )
        except BaseException as error:
            if self._announced.done():
                raise
            self._announced.set_exception(error)


class _StoppableHooks(ThreadHooks):
    """Hooks of a hub that another thread interrupts."""

    def __init__(self) -> None:
        self._interrupt: Callable[[], None] = lambda: None

    def on_interrupt(
        self,
        loop: asyncio.AbstractEventLoop,
        interrupted: Callable[[], None],
        terminated: Callable[[], None] | None = None,  # noqa: ARG002
    ) -> None:
        """See `ProcessHooks`."""

        def interrupt() -> None:
            # The hub may have ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(interrupted)

        self._interrupt = interrupt

    def interrupt(self) -> None:
        """Interrupt the hub; any thread may call."""
        self._interrupt()
