"""Where a node listens and what it tells the others (`bind`, `advertise`)."""

from __future__ import annotations

from ..errors import ClusterError

WILDCARDS = ("0.0.0.0", "*", "::", "[::]")


def listen_address(bind: str, port: int | str = "*") -> str:
    """`tcp://BIND:PORT`; `bind` may have a port of its own."""
    if bind.startswith("tcp://"):
        bind = bind.removeprefix("tcp://")
    return f"tcp://{bind}" if _has_port(bind) else f"tcp://{bind}:{port}"


def advertised(endpoint: str, bind: str, advertise: str) -> str:
    """The endpoint that others connect to: the bound one with the host that they can reach.

    Raises:
        ClusterError: the node listens on all addresses and no `advertise` says which to tell.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if advertise:
        host = advertise
    elif bind.rpartition(":")[0] in WILDCARDS or bind in WILDCARDS or host in WILDCARDS:
        raise ClusterError(
            "listens on all addresses, so the others cannot be told where it is",
            where=bind,
            remedy="give the address that other hosts reach with --advertise",
        )
    return f"tcp://{host}:{port}"


def _has_port(bind: str) -> bool:
    host, colon, port = bind.rpartition(":")
    return bool(colon) and not host.endswith(":") and (port.isdigit() or port == "*") and "]" not in port
