"""The HTTP servers: the socket that they listen on, their bounds, and their log."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...errors import ClusterError
from ...open_files import too_many_files
from ..refusals import Refusals
from .connections import ConnectionCounts, Connections

BACKLOG = 64
LINGER_SECONDS = 1.0
"""Time for the rest of a body that the answer did not wait for."""
MOST_HEADERS = 64
HEALTH_PATH = "/healthz"
"""The path that probes ask, without a token."""


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """A log for aiohttp's errors: no traceback for malformed requests.

    Each malformed request is one line; see `Refusals`.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, {})
        self._refusals = Refusals(log)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log what aiohttp caught."""
        if isinstance(exc_info, HttpProcessingError):
            self._refusals.add("refused a request: %s", " ".join(exc_info.message.split())[:200])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)


class HttpServer:
    """An application that is served on a socket of `listen`, on its caller's loop.

    The body of a request is as it came: nothing is decompressed.

    Args:
        log: gets a line for each malformed request.
        most: limit for the connections, see `Connections`.
        idle_seconds: after this time without a request, a connection is closed.
        shutdown_seconds: limit for the requests that are there at the end.
        cancel: whether a handler is cancelled if its client goes.
    """

    def __init__(
        self,
        app: web.Application,
        listening: socket.socket,
        log: logging.Logger,
        *,
        most: int,
        idle_seconds: float,
        shutdown_seconds: float,
        cancel: bool = False,
    ) -> None:
        self._socket = listening
        self._connections = Connections(log, most=most, idle_seconds=idle_seconds)
        app.middlewares.insert(0, self._connections.middleware())
        self._accepting: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=RequestLog(log),
            handle_signals=False,
            handler_cancellation=cancel,
            # `Connections` closes them before.
            keepalive_timeout=2 * idle_seconds,
            shutdown_timeout=shutdown_seconds,
            lingering_time=LINGER_SECONDS,
            max_headers=MOST_HEADERS,
            auto_decompress=False,
        )

    @property
    def counts(self) -> ConnectionCounts:
        """Counts of the connections; any thread may read them."""
        return self._connections.counts

    async def start(self) -> None:
        """Start to answer requests, including those that already wait."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._accepting = asyncio.ensure_future(self._connections.accept(self._socket, server))

    async def close(self) -> None:
        """End the server, and close the socket."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await self._runner.cleanup()
        self._socket.close()


def listen(host: str, port: int, *, what: str, remedy: str) -> socket.socket:
    """Listen at an address; port 0 is any free one.

    Raises ClusterError, with `what` as its subject.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise too_many_files(error) or ClusterError(
            f"{what} cannot be served there ({os.strerror(error.errno) if error.errno else error})",
            where=f"{host}:{port}",
            remedy=remedy,
        ) from error
