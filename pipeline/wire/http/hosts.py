"""Check of Host headers, against DNS rebinding."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..endpoints import AUTO, WILDCARDS, host_of, is_loopback_host
from .token_guard import TokenGuard


def host_in_header(header: str) -> str:
    """Return the host in a Host header, without its port; "" if malformed."""
    header = header.strip().lower()
    if header.startswith("["):
        host, bracket, rest = header[1:].partition("]")
        return host if bracket and (not rest or rest.startswith(":")) else ""
    host, colon, port = header.partition(":")
    return host if not colon or port.isdecimal() else ""


def names_this_server(header: str, names: Collection[str]) -> bool:
    """Return whether a request with this Host header is for this server.

    Any IP address is accepted, since DNS cannot point it elsewhere. Names other than "localhost" and `names`
    are not.
    """
    host = host_in_header(header)
    if host == "localhost" or host in {name.lower() for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def names_of(host: str, advertise: str = "") -> tuple[str, ...]:
    """Return the names by which a client may call a server.

    `host` is where it listens, `advertise` what others are told. The first is shown to people. Addresses and
    "localhost" need not be among them.
    """
    if host not in WILDCARDS:
        return () if is_loopback_host(host) else (host,)
    names = (host_of(advertise), socket.gethostname())
    return tuple(dict.fromkeys(name for name in names if name and name != AUTO))


def check_host(names: Collection[str], guard: TokenGuard | None = None) -> Middleware:
    """Return middleware that refuses requests for another server (421).

    With a `guard` that has a token, requests may use any name: no web site has the token, whatever its name.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        guarded = guard is not None and guard.has_token
        if not guarded and not names_this_server(request.headers.get("Host", ""), names):
            return web.Response(status=421, text="this server has another name\n")
        return await handler(request)

    return check
