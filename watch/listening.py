"""The socket that the HTTP servers listen on, and their log."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from ..pipeline.errors import ClusterError
from ..pipeline.wire.refusals import Refusals

BACKLOG = 64


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """A log for aiohttp's errors: no traceback for malformed requests.

    Each malformed request is one line; see `Refusals`.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, {})
        self._refusals = Refusals(log)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log what aiohttp caught."""
        if isinstance(exc_info, HttpProcessingError):
            self._refusals.add("refused a request: %s", " ".join(exc_info.message.split())[:200])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)


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
