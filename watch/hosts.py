"""Check of Host headers, against DNS rebinding."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


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
