"""A node's connection to its coordinator, as the socket's events tell it."""

from __future__ import annotations

import contextlib
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from ...pipeline.wire.keys.job_key import job_key
from ...pipeline.wire.socket_events import has_message

# Broken handshakes in a row that mean another key. They take some seconds, since a proxy in front of a
# coordinator that is not up yet also accepts connections and ends them.
MOST_BROKEN_HANDSHAKES = 16
OTHER_KEY = "the %s and this node have different keys, or only one has a key; give both the same --key"
# The other side gave the reason: a key on one side only, or one that it does not admit.
_REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CONNECTION_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | _REFUSALS
)


class ConnectionWatch:
    """The events of one socket; belongs to its thread.

    Make it before the socket connects, so that no event is missed.

    Attributes:
        events: the socket that the events come from.
        connected: whether a connection exists.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.events: zmq.Socket[Any] = socket.get_monitor_socket(_CONNECTION_EVENTS)
        self.connected = False
        self._broken_handshakes = 0

    def take(self) -> bool:
        """Take the events that are there; return whether one tells of different keys."""
        refused = False
        while has_message(self.events):
            event = parse_monitor_message(self.events.recv_multipart(zmq.NOBLOCK))["event"]
            refused = self._follow(event) or refused
        return refused

    def _follow(self, event: int) -> bool:
        self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        broken = self._broken_handshakes + (event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self._broken_handshakes = 0 if self.connected else broken
        other_key = self._broken_handshakes >= MOST_BROKEN_HANDSHAKES and job_key() is not None
        return bool(event & _REFUSALS) or other_key

    def close(self) -> None:
        """End the events; the socket stays."""
        with contextlib.suppress(zmq.ContextTerminated):
            self._socket.disable_monitor()
        self.events.close()
