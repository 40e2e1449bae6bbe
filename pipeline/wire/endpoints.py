"""Addresses of nodes, to listen on and to connect to.

A node listens on `bind`; others connect to `advertise`.
"""

from __future__ import annotations

import ipaddress
import socket
import sys

from ..errors import ClusterError, JobFileError
from ..types import MAX_PORT

WILDCARDS = ("0.0.0.0", "*", "::", "[::]")
AUTO = "auto"
# An address reserved for documentation (RFC 5737), to which only the default route leads.
_ELSEWHERE = "192.0.2.1"
_ANY_PORT = 9


def listen_address(bind: str, port: int | str = "*") -> str:
    """Build `tcp://BIND:PORT`; a port in `bind` takes precedence.

    Raises:
        ClusterError: the port is out of range.
    """
    bind = bind.removeprefix("tcp://")
    if not _has_port(bind):
        return f"tcp://{bind}:{port}"
    port_text = bind.rpartition(":")[2]
    # ZeroMQ would silently use the last 16 bits of a larger number.
    if port_text != "*" and int(port_text) > MAX_PORT:
        raise ClusterError(
            f"there is no port {port_text:.20}", where=bind, remedy=f"give one up to {MAX_PORT} with --bind"
        )
    return f"tcp://{bind}"


def local_address(token: str) -> str:
    """Build an `ipc` address in Linux's abstract namespace, which leaves no file behind."""
    return f"ipc://@shadowsync-{token}"


def use_ipc(transport: str, bind: str, *, one_machine: bool) -> bool:
    """Return whether a node listens on `ipc`.

    Args:
        transport: `network.transport`.
        bind: address at which the node would listen on TCP.
        one_machine: whether all nodes are children of one supervisor.

    Raises:
        JobFileError: "ipc" is required and this is not Linux.
    """
    linux = sys.platform == "linux"
    if transport == "ipc" and not linux:
        raise JobFileError('network.transport: "ipc" given; it needs Linux, use "tcp" here')
    return transport == "ipc" or (transport == "auto" and one_machine and linux and bind == "127.0.0.1")


def advertised(endpoint: str, bind: str, advertise: str) -> str:
    """Build the endpoint that others connect to.

    It is the bound endpoint with the host `advertise`, which others can reach. If ports are mapped,
    `advertise` may include a port. For a node that listens on `ipc` it may be the `ipc` address of a relay.

    Raises:
        ClusterError: the node listens on all addresses, and `advertise` does not say which one to use.
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
            "listens on all addresses, so other nodes do not know which one to connect to",
            where=bind,
            remedy="give the address that other hosts reach with --advertise",
        )
    return f"tcp://{host}:{port}"


def host_of(address: str) -> str:
    """Extract the host, without port and brackets, of an address such as `advertise`."""
    address = address.removeprefix("tcp://")
    host = address.rpartition(":")[0] if _has_port(address) else address
    return host.removeprefix("[").removesuffix("]")


def is_loopback_host(host: str) -> bool:
    """Return whether `host` can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(towards: str = "") -> str:
    """Find this host's address on the route to `towards`.

    `towards` is `tcp://HOST:PORT`, or "" for the default route. `advertise = "auto"` means this address. The
    address comes from the kernel's routing table; nothing is sent. Any thread may call; resolving HOST may
    block.

    Raises:
        ClusterError: HOST is not known (yet), or there is no route to it.
    """
    host = towards.removeprefix("tcp://").rpartition(":")[0].strip("[]") or _ELSEWHERE
    try:
        addresses = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found_address = str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(
            f"this host's address on the route to it cannot be found ({error.strerror or error})",
            where=towards or "--advertise auto",
            remedy="give the address that other hosts reach with --advertise",
        ) from error
    return f"[{found_address}]" if ":" in found_address else found_address


def token_of(identity: bytes) -> str:
    """Return a process's token in the identity of a socket of one of its threads, `TOKEN/THREAD`."""
    return identity.decode("ascii", "replace").partition("/")[0]


def _has_port(bind: str) -> bool:
    host, colon, port = bind.rpartition(":")
    return bool(colon) and not host.endswith(":") and (port.isdigit() or port == "*") and "]" not in port
