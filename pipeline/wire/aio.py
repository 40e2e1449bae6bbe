"""Sending from an asyncio loop without ever waiting."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import zmq
import zmq.asyncio

log = logging.getLogger(__name__)


def send_now(socket: zmq.asyncio.Socket, frames: list[Any]) -> bool:
    """Queues a message on the loop's thread and says whether it was queued.

    With a full queue, or a peer that is gone, nothing is sent: whoever asked asks again (contract 6).
    """
    future = cast("asyncio.Future[Any]", socket.send_multipart(frames, zmq.NOBLOCK))
    error = future.exception() if future.done() else None
    if error is None:
        return True
    if isinstance(error, zmq.ZMQError) and error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
        log.warning("a control message could not be queued: %s", error)
        return False
    raise error
