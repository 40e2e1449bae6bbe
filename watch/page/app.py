"""HTTP routes of the web page.

All routes are read-only. Only `/runs.json` reads files: those of the runs beside this one, at most every
RUNS_SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection

from aiohttp import web

from ...pipeline.wire.http.hosts import check_host
from ...pipeline.wire.http.token_guard import TokenGuard
from ..mirror import Mirror
from ..status import Status
from .broadcast import Broadcast, Full
from .files import page_files

RETRY_MILLISECONDS = 2000
RUNS_SECONDS = 5.0
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "shadowsync",
}

ListRuns = Callable[[], list[dict[str, str]]]


class PageApp:
    """The routes: the page's files, `/events`, `/status.json` and `/runs.json`.

    All of it belongs to one asyncio loop.

    Args:
        names: host names that this server answers to, besides addresses and "localhost".
        guard: checks the token of every request.
        list_runs: reads the rows of the table of runs; called on other threads, one at a time.
    """

    def __init__(
        self,
        mirror: Mirror,
        broadcast: Broadcast,
        names: Collection[str],
        guard: TokenGuard,
        list_runs: ListRuns,
    ) -> None:
        self._mirror = mirror
        self._broadcast = broadcast
        # The newest status, and its JSON with all curves, which is made once.
        self._last: tuple[Status | None, str] = (None, "null")
        self._list_runs, self._reading = list_runs, asyncio.Lock()
        self._runs, self._read_at = "[]", float("-inf")
        self.app = web.Application(middlewares=[check_host(names), guard.middleware()])
        self.app.router.add_get("/{path:.*}", self._respond)
        self.app.on_response_prepare.append(_with_headers)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        # The raw path, so that a path with %2e or .. matches no route.
        path = request.rel_url.raw_path
        if path == "/events":
            return await self._events(request)
        if path == "/status.json":
            return web.Response(text=self._whole(), content_type="application/json")
        if path == "/runs.json":
            return web.Response(text=await self._rows(), content_type="application/json")
        file = page_files().get(path)
        if file is None:
            return web.Response(status=404, text="not found\n")
        return web.Response(body=file.content, content_type=file.content_type, charset="utf-8")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return web.Response(status=503)
        try:
            last_id = request.headers.get("Last-Event-ID", "")
            client = self._broadcast.join(last_id, self._whole, transport.abort)
        except Full:
            return web.Response(status=503, headers={"Retry-After": "10"}, text="too many pages are open\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            await response.prepare(request)
            await response.write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
            while (event := await client.next()) is not None:
                await response.write(event)
        except ConnectionError:
            # The page was closed, or dropped for being slow; neither is an error of the server.
            return response
        finally:
            self._broadcast.leave(client)
        return response

    async def _rows(self) -> str:
        async with self._reading:
            if time.monotonic() - self._read_at > RUNS_SECONDS:
                self._runs = json.dumps(await asyncio.to_thread(self._list_runs))
                self._read_at = time.monotonic()
        return self._runs

    def _whole(self) -> str:
        if self._mirror.latest is not self._last[0] and (status := self._mirror.whole()) is not None:
            self._last = (self._mirror.latest, status.model_dump_json())
        return self._last[1]


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)
