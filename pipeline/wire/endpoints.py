"""Where a node listens and what it tells the others (`bind`, `advertise`).

The address of this host as another one sees it: what `advertise = "auto"` stands for.
"""

from __future__ import annotations

import socket
import sys

from ..errors import ClusterError, JobFileError

WILDCARDS = ("0.0.0.0", "*", "::", "[::]")
MAX_PORT = 65_535


def listen_address(bind: str, port: int | str = "*") -> str:
    """`tcp://BIND:PORT`; `bind` may have a port of its own.

    Raises:
        ClusterError: no such port can be.
    """
    bind = bind.removeprefix("tcp://")
    if not _has_port(bind):
        return f"tcp://{bind}:{port}"
    own = bind.rpartition(":")[2]
    # ZeroMQ would listen on whatever its last 16 bits say.
    if own != "*" and int(own) > MAX_PORT:
        raise ClusterError(
            f"there is no port {own:.20}", where=bind, remedy=f"give one up to {MAX_PORT} with --bind"
        )
    return f"tcp://{bind}"


def local_address(token: str) -> str:
    """An `ipc` address in Linux's abstract namespace: it has no file that could be left behind."""
    return f"ipc://@shadowsync-{token}"


def use_ipc(transport: str, bind: str, *, one_machine: bool) -> bool:
    """Whether a node listens on `ipc`.

    Args:
        transport: `network.transport`.
        bind: where the node would listen on TCP.
        one_machine: whether all nodes are children of one supervisor.

    Raises:
        JobFileError: "ipc" is demanded and this is not Linux.
    """
    linux = sys.platform == "linux"
    if transport == "ipc" and not linux:
        raise JobFileError('network.transport: "ipc" given; it needs Linux, use "tcp" here')
    return transport == "ipc" or (transport == "auto" and one_machine and linux and bind == "127.0.0.1")


def advertised(endpoint: str, bind: str, advertise: str) -> str:
    """The endpoint that others connect to: the bound one with the host that they can reach.

    `advertise` is that host; it may have a port of its own, where a port is mapped to another, and for a node
    that listens on `ipc` another such address, where something stands between.

    Raises:
        ClusterError: the node listens on all addresses and no `advertise` says which to tell.
    """
    if endpoint.startswith("ipc://"):
        return advertise if advertise.startswith("ipc://") else endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if advertise:
        advertise = advertise.removeprefix("tcp://")
        if _has_port(advertise):
            return f"tcp://{advertise}"
        host = advertise
    elif bind.rpartition(":")[0] in WILDCARDS or bind in WILDCARDS or host in WILDCARDS:
        raise ClusterError(
            "listens on all addresses, so the others cannot be told where it is",
            where=bind,
            remedy="give the address that other hosts reach with --advertise",
        )
    return f"tcp://{host}:{port}"


def host_of(address: str) -> str:
    """The host of an address as `advertise` has it, without its port, if it has one, and without brackets."""
    address = address.removeprefix("tcp://")
    host = address.rpartition(":")[0] if _has_port(address) else address
    return host.removeprefix("[").removesuffix("]")


def _has_port(bind: str) -> bool:
    host, colon, port = bind.rpartition(":")
    return bool(colon) and not host.endswith(":") and (port.isdigit() or port == "*") and "]" not in port


AUTO = "auto"
# Reserved for documentation (RFC 5737), so it is reached, if at all, by the default route.
_ELSEWHERE = "192.0.2.1"
_ANY_PORT = 9


def own_address(towards: str = "") -> str:
    """The address that packets to `towards`, `tcp://HOST:PORT`, leave from; without it, those to anywhere.

    Asks the kernel's routing table; nothing is sent. Any thread may call; looking HOST up may block.

    Raises:
        ClusterError: HOST is not known (yet), or there is no route.
    """
    host = towards.removeprefix("tcp://").rpartition(":")[0].strip("[]") or _ELSEWHERE
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"this host's address towards it cannot be found ({error.strerror or error})",
            where=towards or "--advertise auto",
            remedy="give the address that other hosts reach with --advertise",
        ) from error
    return f"[{own}]" if ":" in own else own
