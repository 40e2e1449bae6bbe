"""Roles that answer at one socket: binding it, handing it to the service thread, closing both."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

import zmq

from ...pipeline.wire.sockets import Listener
from .role import Role

JOIN_SECONDS = 3.0


class RunningService(Protocol):
    """What a role needs of its service."""

    def metrics(self) -> dict[str, Any]:
        """See `MessageHandler.metrics`."""

    def stop(self) -> None:
        """See `Service.stop`."""

    def join(self, timeout_seconds: float) -> bool:
        """See `Service.join`."""


S = TypeVar("S", bound=RunningService)


class ServingRole(Role, Generic[S]):
    """The control side of a node whose service thread, of type S, owns its listener and its state."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._service: S | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Binds the socket that others ask at."""
        self._listener = Listener(context, address)
        return self._listener.endpoint

    def metrics(self) -> dict[str, Any]:
        """Counts so far."""
        return self._service.metrics() if self._service else {}

    async def close(self) -> None:
        """Ends the service thread, which closes the socket."""
        if self._service is not None:
            self._service.stop()
            await asyncio.to_thread(self._service.join, JOIN_SECONDS)
        elif self._listener is not None:
            self._listener.close()

    @property
    def bound(self) -> Listener:
        """The listener, after `listen`."""
        assert self._listener is not None
        return self._listener

    @property
    def service(self) -> S:
        """The service, after it was made in `prepare`."""
        assert self._service is not None
        return self._service
