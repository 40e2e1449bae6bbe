"""Token check of HTTP requests: query, cookie or header."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Collection, Iterator

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..refusals import Refusals

PARAMETER = "token"
SCHEME = "bearer "
REFUSAL = (
    "This needs the job's token: open the address with ?token=..., which the job prints, or send"
    " the header Authorization: Bearer TOKEN. `shadowsync key token job.key` prints the token.\n"
)

log = logging.getLogger(__name__)


class TokenGuard:
    """Middleware that refuses requests without the token (401). Belongs to one asyncio loop.

    Args:
        token: token that requests must have; None admits all.
        log: log of the server.
    """

    def __init__(self, token: str | None, log: logging.Logger = log) -> None:
        self._token = token
        # A cookie belongs to a host, whatever the port; the pages of two jobs must not share one.
        self._cookie = f"shadowsync-{hashlib.sha256((token or '').encode()).hexdigest()[:12]}"
        self.refusals = Refusals(log)

    @property
    def has_token(self) -> bool:
        """Whether requests need a token."""
        return self._token is not None

    def admits(self, request: web.Request) -> bool:
        """Return whether a request has the token in its query, cookie or header."""
        return self._token is None or any(self._is_token(token) for token in self._tokens_of(request))

    def middleware(self, open_paths: Collection[str] = ()) -> Middleware:
        """Return middleware that guards all routes of a server but `open_paths`."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.rel_url.raw_path not in open_paths and not self.admits(request):
                return self._refuse(request)
            response = await handler(request)
            self._keep(request, response)
            return response

        return guard

    def _refuse(self, request: web.Request) -> web.Response:
        how = "a wrong token" if any(self._tokens_of(request)) else "no token"
        self.refusals.add("refused a request from %s: it has %s", request.remote, how)
        return web.Response(
            status=401, text=REFUSAL, headers={"WWW-Authenticate": 'Bearer realm="shadowsync"'}
        )

    def _tokens_of(self, request: web.Request) -> Iterator[str]:
        yield from request.query.getall(PARAMETER, [])
        if (cookie := request.cookies.get(self._cookie)) is not None:
            yield cookie
        header = request.headers.get("Authorization", "")
        if header.lower().startswith(SCHEME):
            yield header[len(SCHEME) :].strip()

    def _is_token(self, token: str) -> bool:
        # In constant time, and as bytes: compare_digest refuses text that is not ASCII.
        return hmac.compare_digest(token.encode(errors="surrogateescape"), (self._token or "").encode())

    def _keep(self, request: web.Request, response: web.StreamResponse) -> None:
        """Have the browser keep the address's token as a cookie."""
        if self._token is None or response.prepared or PARAMETER not in request.query:
            return
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="Lax", path="/")
