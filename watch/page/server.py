"""Server of a job's web page, on a thread of its own."""

from __future__ import annotations

import logging

from ...pipeline.errors import ClusterError
from ...pipeline.wire.http.connections import ConnectionCounts
from ...pipeline.wire.http.http_thread import HttpThread
from ...pipeline.wire.http.listening import HttpServer, listen
from ...pipeline.wire.http.token_guard import PARAMETER, TokenGuard
from ...pipeline.wire.keys.http_token import required_token
from ..mirror import Mirror
from ..status import Status
from .app import ListRuns, PageApp
from .broadcast import Broadcast

MOST_CONNECTIONS = 64
IDLE_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0

log = logging.getLogger(__name__)


class PageServer:
    """The server and its thread; one other thread may call `publish` and `close`.

    Off loopback, requests need a token (see `required_token`), which `url` contains.

    Args:
        host, port: address to listen at; port 0 is any free one.
        names: host names, besides addresses and "localhost", that a browser may use for this server.
        list_runs: see `PageApp`.

    Raises:
        ClusterError: it cannot listen there.
        JobFileError: other machines can reach it, and there is neither a key nor a token.
    """

    def __init__(self, host: str, port: int, names: tuple[str, ...] = (), list_runs: ListRuns = list) -> None:
        token = required_token(host, port)
        self._guard = TokenGuard(token, log)
        self._socket = listen(host, port, what="the page", remedy="choose another port with --web, or none")
        self.port: int = self._socket.getsockname()[1]
        shown = names[0] if names else host
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"
        self.url += f"?{PARAMETER}={token}" if token else ""
        self._mirror = Mirror()
        self._names = (*names, host)
        self._list_runs = list_runs
        self._server: HttpServer | None = None
        self.broadcast: Broadcast | None = None
        self._thread = HttpThread("page", self._make)

    @property
    def counts(self) -> ConnectionCounts:
        return ConnectionCounts() if self._server is None else self._server.counts

    def start(self) -> None:
        """Start the thread and wait until it serves.

        Raises ClusterError if it does not.
        """
        try:
            self._thread.start(self.url, "try again, or run without --web")
        except ClusterError:
            self._socket.close()
            raise

    def publish(self, status: Status) -> None:
        """Send a status to every open page."""
        self._thread.call(lambda: self._take(status))

    def close(self) -> None:
        """Stop the server; published statuses are sent first, for at most SHUTDOWN_SECONDS."""
        self._thread.close(self.broadcast.end if self.broadcast is not None else None)
        self._socket.close()

    def _take(self, status: Status) -> None:
        self._mirror.take(status)
        if self.broadcast is not None:
            # Also without a client: a client that reconnects requests what it missed.
            self.broadcast.publish("status", status.model_dump_json())

    def _make(self) -> HttpServer:
        self.broadcast = Broadcast()
        pages = PageApp(self._mirror, self.broadcast, self._names, self._guard, self._list_runs)
        self._server = HttpServer(
            pages.app,
            self._socket,
            log,
            most=MOST_CONNECTIONS,
            idle_seconds=IDLE_SECONDS,
            shutdown_seconds=SHUTDOWN_SECONDS,
            cancel=True,
        )
        return self._server
