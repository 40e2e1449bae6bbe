"""The address of this host as another one sees it: what `advertise = "auto"` stands for."""

from __future__ import annotations

import socket

from ..errors import ClusterError

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
