"""Server of a job's web page.

The server has its own thread and loop, so that no browser can delay the coordinator's control plane. It is
no `LoopThread` of `nodes/runtime`: watch may not import that, and a failed `LoopThread` ends its node, while
a failed page must leave the job alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ..pipeline.errors import ClusterError
from ..pipeline.text.format import duration
from ..pipeline.wire.keys.http_token import required_token
from ..pipeline.wire.tasks import post
from .broadcast import Broadcast
from .listening import HttpServer, listen
from .mirror import Mirror
from .page_app import PageApp
from .status import Status
from .token_guard import PARAMETER, TokenGuard

IDLE_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0
JOIN_SECONDS = 5.0
START_SECONDS = 10.0

log = logging.getLogger(__name__)


class PageServer:
    """The server and its thread; one other thread may call `publish` and `close`.

    Off loopback, requests need a token (see `required_token`), which `url` contains.

    Args:
        host, port: address to listen at; port 0 is any free one.
        names: host names, besides addresses and "localhost", that a browser may use for this server.

    Raises:
        ClusterError: it cannot listen there.
        JobFileError: other machines can reach it, and there is neither a key nor a token.
    """

    def __init__(self, host: str, port: int, names: tuple[str, ...] = ()) -> None:
        token = required_token(host, port)
        self._guard = TokenGuard(token, log)
        self._socket = listen(host, port, what="the page", remedy="choose another port with --web, or none")
        self.port: int = self._socket.getsockname()[1]
        shown = names[0] if names else host
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"
        self.url += f"?{PARAMETER}={token}" if token else ""
        self._mirror = Mirror()
        self._names = (*names, host)
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.broadcast: Broadcast | None = None
        self._thread = threading.Thread(target=self._main, name="page", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until it serves.

        Raises ClusterError if it does not.
        """
        self._thread.start()
        if self._ready.wait(START_SECONDS) and self._failure is None:
            return
        self.close()
        why = f"{type(self._failure).__name__}: {self._failure}" if self._failure else duration(START_SECONDS)
        raise ClusterError(
            f"the page's server did not start ({why})",
            where=self.url,
            remedy="try again, or run without --web",
        ) from self._failure

    def publish(self, status: Status) -> None:
        """Send a status to every open page."""
        self._call(lambda: self._take(status))

    def close(self) -> None:
        """Stop the server; published statuses are sent first, for at most SHUTDOWN_SECONDS."""
        if self._stop is not None:
            self._call(self._stop.set)
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        self._socket.close()

    def _call(self, work: Callable[[], None]) -> None:
        if self._loop is not None:
            post(self._loop, work)

    def _take(self, status: Status) -> None:
        self._mirror.take(status)
        if self.broadcast is not None:
            # Also without a client: a client that reconnects requests what it missed.
            self.broadcast.publish("status", status.model_dump_json())

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            # If the server fails later, training continues without the page.
            self._failure = error
            log.exception("the page's server failed")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        broadcast = self.broadcast = Broadcast()
        pages = PageApp(self._mirror, broadcast, self._names, self._guard)
        server = HttpServer(
            pages.app,
            self._socket,
            log,
            idle_seconds=IDLE_SECONDS,
            shutdown_seconds=SHUTDOWN_SECONDS,
            cancel=True,
        )
        try:
            await server.start()
            self._ready.set()
            await self._stop.wait()
            broadcast.end()
        finally:
            await server.close()
