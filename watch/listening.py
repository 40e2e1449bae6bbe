"""A socket that an HTTP server listens on."""

from __future__ import annotations

import os
import socket

from ..pipeline.errors import ClusterError

BACKLOG = 64


def listen(host: str, port: int, *, what: str, remedy: str) -> socket.socket:
    """Listen at an address; port 0 is any free one.

    Raises ClusterError, with `what` as its subject.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ClusterError(
            f"{what} cannot be served there ({os.strerror(error.errno) if error.errno else error})",
            where=f"{host}:{port}",
            remedy=remedy,
        ) from error
