"""HTTP routes of the web page.

All routes are read-only, and none reads files from disk.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

from ...pipeline.wire.http.hosts import check_host
from ...pipeline.wire.http.token_guard import TokenGuard
from ..mirror import Mirror
from ..status import Status
from .broadcast import Broadcast, Full
from .files import page_files

RETRY_MILLISECONDS = 2000
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


class PageApp:
    """The routes: the page's files, `/events` and `/status.json`.

    All of it belongs to one asyncio loop.

    Args:
        names: host names that this server answers to, besides addresses and "localhost".
        guard: checks the token of every request.
    """

    def __init__(
        self, mirror: Mirror, broadcast: Broadcast, names: Collection[str], guard: TokenGuard
    ) -> None:
        self._mirror = mirror
        self._broadcast = broadcast
        # The newest status, and its JSON with all curves, which is made once.
        self._last: tuple[Status | None, str] = (None, "null")
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

    def _whole(self) -> str:
        if self._mirror.latest is not self._last[0] and (status := self._mirror.whole()) is not None:
            self._last = (self._mirror.latest, status.model_dump_json())
        return self._last[1]


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)
