"""A hub from its address to its end, with its sync nodes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...nodes.control.monitoring import Monitoring
from ...nodes.runtime.main_loop import run_pause_aware
from ...nodes.runtime.process import ProcessHooks
from ...nodes.runtime.role import Role
from ...nodes.runtime.settings import NodeSettings
from ...nodes.sync.role import SyncRole
from ...pipeline.config.job import Job
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.loops import LoopsReply
from ..node_thread import NodeThread, ThreadHooks
from .checkpoint import HubCheckpoints, saved_model_of
from .expected_members import ExpectedMembers
from .hosted import end_hosted, hosted_node
from .ledger import BOUND, LOOP_PREFIX, MODULE_PREFIX, HubLedger
from .server import HubServer
from .status import hub_status
from .table_checkpoints import SavedTables, TableCheckpoints
from .tables import HubTables


class HubSyncNodes:
    """The sync nodes of a hub; runs on the hub's loop."""

    def __init__(self, server: HubServer) -> None:
        self._server = server
        self._nodes: list[NodeThread[Role]] = []

    async def start(self) -> None:
        """Start them, as many as the hub's job has."""
        server = self._server
        for index in range(server.state.job.sync_nodes):
            self._nodes.append(hosted_node("sync", server.settings, server.bound, index))
            await asyncio.to_thread(self._nodes[-1].start)

    async def start_later(self, loops: concurrent.futures.Future[Job]) -> None:
        """Start them once somebody says what the loops synchronize."""
        self._server.take_loops(await asyncio.wrap_future(loops))
        await self.start()

    async def center(self) -> Float32Array | None:
        """Return the center, float32 [numel]; None before it has a value."""
        slices = [await asyncio.wrap_future(_slice_of(node)) for node in self._nodes]
        values = [values_of_slice for values_of_slice in slices if values_of_slice is not None]
        # With more nodes than elements, the last ones hold nothing.
        return np.concatenate(values) if values else None

    async def close(self) -> None:
        """Wait for the nodes, which have been told to end unless they had not joined yet."""
        await end_hosted(self._nodes)


def _slice_of(node: NodeThread[Role]) -> concurrent.futures.Future[Float32Array | None]:
    role = node.role
    assert isinstance(role, SyncRole)
    return node.submit(role.slice_values)


async def serve_hub(
    settings: NodeSettings,
    announce: Callable[[str, str], None],
    *,
    expected: ExpectedMembers | None = None,
    loops: concurrent.futures.Future[Job] | None = None,
    process: ProcessHooks | None = None,
    checkpoint_seconds: float = 0.0,
    resume: Path | None = None,
) -> LoopsReply:
    """Serve loops until the end; return the book of steps.

    The end is an interrupt, or that `expected` is over. `announce` is called with the address to join, and
    that of the page, "" without one. Raises ClusterError for an address that cannot be used, and the error of
    a sync node that failed.

    With `checkpoint_seconds` a checkpoint is written that often into the hub's folder, and at the end. With
    `resume`, the folder of a hub with a checkpoint, the loops begin with that. With `loops` the hub takes
    modules with tables at once, and loops as soon as this says what they synchronize.
    """
    ledger, saved = await asyncio.to_thread(_open_ledger, settings)
    server = HubServer(settings, expected=expected, process=process, ledger=ledger, saved=saved)
    # A hub whose place is taken may have died before a loop took the model.
    begins = not any(key.startswith(LOOP_PREFIX) for key in saved)
    if resume is not None and begins and (model := await asyncio.to_thread(saved_model_of, resume)):
        server.state.resume(model.layout, model.values, model.state)
    await asyncio.to_thread(_resume_tables, server.tables, settings.recover, resume, saved)
    tables_saved = TableCheckpoints(server, server.state, server.tables)
    watching = Monitoring(server, partial(hub_status, server.state), "hub")
    sync_nodes = HubSyncNodes(server)
    try:
        endpoint = server.listen(saved.get(BOUND, ""))
        await server.save({BOUND: server.bound})
        watching.open()
        server.start()
        server.spawn(watching.run())
        if loops is None:
            server.take_loops(settings.job)
            await sync_nodes.start()
        else:
            server.spawn(sync_nodes.start_later(loops))
        if checkpoint_seconds:
            checkpoints = HubCheckpoints(server, server.state, sync_nodes.center)
            server.checkpoint = checkpoints.take
            server.spawn(checkpoints.run(checkpoint_seconds, tables_saved.take))
        announce(endpoint, server.state.page)
        await server.over()
        if checkpoint_seconds:
            # The nodes of the tables outlive the last module.
            await tables_saved.take()
    finally:
        if server.bound:
            await server.end_all()
        await sync_nodes.close()
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


def _resume_tables(
    tables: HubTables, recover: Path | None, resume: Path | None, saved: Mapping[str, Any]
) -> None:
    """Begin with the tables of the hub that this one recovers or resumes."""
    modules = [key.removeprefix(MODULE_PREFIX) for key in saved if key.startswith(MODULE_PREFIX)]
    if recover is not None and (saved_tables := SavedTables.find(recover)) is not None:
        # Older hubs did not record their modules, whose passes would be taken for those of others.
        tables.resume(saved_tables.job, saved_tables.settings, saved_tables.folder, goes_on=bool(modules))
    elif resume is not None and (others := SavedTables.find(resume, verify=True)) is not None:
        tables.resume(others.job, others.settings, others.folder)
    elif recover is not None:
        tables.lose_rows(modules)


class HubThread:
    """A hub as a thread of this process.

    Args:
        expected: with it, the hub ends when that is over.
        loops_later: whether `take_loops` says later what its loops synchronize.
        checkpoint_seconds, resume: as of `serve_hub`.

    Attributes:
        endpoint, page: the address to join, and that of the page, once `start` has returned.
        book: the book of steps, once it has ended.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        expected: ExpectedMembers | None = None,
        loops_later: bool = False,
        checkpoint_seconds: float = 0.0,
        resume: Path | None = None,
    ) -> None:
        self._settings, self._expected = settings, expected
        self._loops: concurrent.futures.Future[Job] | None = (
            concurrent.futures.Future() if loops_later else None
        )
        if self._loops is not None:
            # The end of the hub, which waits for it, would cancel it for `take_loops`.
            self._loops.set_running_or_notify_cancel()
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

    def take_loops(self, job: Job) -> None:
        """Say once what the loops synchronize, with `loops_later`; any thread may call."""
        assert self._loops is not None
        self._loops.set_result(job)

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
                    expected=self._expected,
                    loops=self._loops,
                    checkpoint_seconds=self._checkpoint_seconds,
                    resume=self._resume,
                    process=self._hooks,
                )
            )
        except BaseException as error:
            if self._announced.done():
                raise
            self._announced.set_exception(error)
        finally:
            if self._expected is not None:
                self._expected.end()


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
        def interrupt() -> None:
            # The hub may have ended by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(interrupted)

        self._interrupt = interrupt

    def interrupt(self) -> None:
        """Interrupt the hub; any thread may call."""
        self._interrupt()
