"""A thread with a loop for an HTTP server beside a node.

Nothing of the node belongs to this thread, so that no browser can delay the node. It is no `LoopThread` of
`nodes/runtime`: pipeline may not import that, and a failed `LoopThread` ends its node, while a failed page
must leave the job alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ...errors import ClusterError
from ...text.format import duration
from ..tasks import post
from .listening import HttpServer

START_SECONDS = 10.0
JOIN_SECONDS = 5.0

log = logging.getLogger(__name__)


class HttpThread:
    """A thread that serves; one other thread may call.

    Args:
        what: the server in one word; the thread has this name.
        make: makes the server, on the thread.
    """

    def __init__(self, what: str, make: Callable[[], HttpServer]) -> None:
        self._what = what
        self._make = make
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name=what, daemon=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The thread's loop; None before it has one."""
        return self._loop

    def start(self, where: str, remedy: str) -> None:
        """Start the thread and wait until it serves.

        Raises ClusterError, with `where` and `remedy`, if it does not.
        """
        self._thread.start()
        if self._ready.wait(START_SECONDS) and self._failure is None:
            return
        self.close()
        why = f"{type(self._failure).__name__}: {self._failure}" if self._failure else duration(START_SECONDS)
        raise ClusterError(
            f"the server of the {self._what} did not start ({why})", where=where, remedy=remedy
        ) from self._failure

    def call(self, work: Callable[[], None]) -> None:
        """Have the thread do some work."""
        if self._loop is not None:
            post(self._loop, work)

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Stop the server; `last` is done first, on the thread."""
        if self._stop is not None:
            if last is not None:
                self.call(last)
            self.call(self._stop.set)
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            # If the server fails later, training continues without it.
            self._failure = error
            log.exception("the server of the %s failed", self._what)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = self._make()
        try:
            await server.start()
            self._ready.set()
            await self._stop.wait()
        finally:
            await server.close()
