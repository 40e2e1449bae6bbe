"""Calls of a run's checkpoints from the coordinator's loop. Imports no torch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, TypeVar

from ...pipeline.checkpoint.run_checkpoints import RunCheckpoints
from ...pipeline.checkpoint.store.contract import StorageError
from ...pipeline.errors import ResourceError
from ...pipeline.text.format import duration
from ...pipeline.wire.tasks import on_daemon_thread

P = ParamSpec("P")
T = TypeVar("T")

# The supervisor kills the coordinator nine seconds after an interrupt, and the report is still to be written.
HURRY_SECONDS: Final = 6.0

log = logging.getLogger(__name__)


class CheckpointCalls:
    """Call checkpoints on threads; no silent storage holds up an interrupted job.

    A call ends with its work, also if it is cancelled, so that a clean-up runs alone. The exception is a
    storage that is still silent HURRY_SECONDS after the interrupt: the job ends without it.

    Args:
        checkpoints: those of the run.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._deadline: float | None = None

    def hurry(self) -> None:
        """Give all calls of a storage together HURRY_SECONDS from now.

        One that is waiting has to be cancelled, too. Those of a folder end by themselves.
        """
        if self._checkpoints.folder is None:
            self._deadline = asyncio.get_running_loop().time() + HURRY_SECONDS

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on a thread, and return what it returns; raises what it raises.

        Raises StorageError if the time of a job in a hurry is over. If this is cancelled, it raises
        CancelledError at the end of the work, with a cause unless the work was done.
        """
        call, in_folder = partial(work, *args, **kwargs), self._checkpoints.folder is not None
        on_thread = asyncio.to_thread(call) if in_folder else on_daemon_thread(call, "storage")
        task = asyncio.ensure_future(on_thread)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            left = self._left_seconds()
            if left is not None and left <= 0:
                task.cancel()
                silent = StorageError(
                    f"the storage did not answer within {duration(HURRY_SECONDS)} of the interrupt"
                )
                if cancelled is None:
                    raise silent
                raise cancelled from silent
            try:
                await asyncio.wait({task}, timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from task.exception()
        return task.result()

    async def clean_up(self, work: Callable[[], None]) -> None:
        """Run `work`; an error of the storage is logged."""
        try:
            await self.run(work)
        except (StorageError, ResourceError) as error:
            log.warning("checkpoints are not cleaned up: %s", error)

    def _left_seconds(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()
