"""A node of a job on a cluster, as the driver sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from ...nodes.runtime.process import exit_status_text
from ...nodes.supervisor.child import known_exit_code, text_of_last_line
from ...nodes.supervisor.launcher import NodeStart
from ...pipeline.errors import ExitCode

# Between two calls of an actor that Ray cannot reach.
ASK_AGAIN_SECONDS = 0.5

log = logging.getLogger(__name__)


class RayNode:
    """A node in an actor; see `RunningNode`.

    The death of the actor, or of its machine, is a death of the node: the actor's end ends the process.

    Args:
        start: what was started.
        host: its `NodeHost`.
        patience_seconds: how long an actor may be out of reach before it counts as dead.
        left: called when it has ended with exit code 0, after which nobody replaces it.
    """

    def __init__(
        self,
        start: NodeStart,
        host: Any,
        patience_seconds: float,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self.role, self.index, self.token = start.role, start.index, start.token
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.how = exit_status_text(None)
        self._host = host
        self._left = left
        self._patience_seconds = patience_seconds
        self._lines: list[str] = []
        self._watch = asyncio.create_task(self._follow())
        self._signals: set[asyncio.Task[None]] = set()

    @property
    def exit_code(self) -> ExitCode:
        """Its exit code, as one of this package's."""
        return known_exit_code(self.code)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if not self.ended.is_set():
            task = asyncio.create_task(self._send(number))
            self._signals.add(task)
            task.add_done_callback(self._signals.discard)

    def last_line(self) -> str:
        """Return the last line of its output, without the program's name in front."""
        return text_of_last_line(self._lines, self.role)

    async def close(self) -> None:
        """Kill its actor; a node that still runs ends when it notices."""
        for task in (self._watch, *self._signals):
            task.cancel()
        await asyncio.gather(self._watch, *self._signals, return_exceptions=True)
        self._release()

    async def _send(self, number: int) -> None:
        # An actor that is gone has no node to signal.
        with contextlib.suppress(RayError):
            await self._host.signal.remote(number)

    async def _follow(self) -> None:
        try:
            self.code, self._lines = await self._outcome()
            self.how = exit_status_text(self.code)
        except RayError as error:
            log.info("the actor of %s-%d died: %s", self.role, self.index, error)
            self.code, self.how = -signal.SIGKILL, "its actor died"
        self._release()
        self.ended.set()
        if self.code == ExitCode.OK:
            self._left()

    async def _outcome(self) -> tuple[int, list[str]]:
        """Wait for the process's end; raises RayError if its actor is dead."""
        loop = asyncio.get_running_loop()
        lost_since: float | None = None
        while True:
            try:
                code, lines = await self._host.wait.remote()
            except ActorUnavailableError:
                now = loop.time()
                lost_since = now if lost_since is None else lost_since
                if now - lost_since > self._patience_seconds:
                    raise
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            else:
                return code, lines

    def _release(self) -> None:
        """Give back what the actor has reserved of its bundle."""
        ray.kill(self._host)
