"""Links between nodes that a test cuts and mends: what is sent over a cut one is lost, either way."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from shadowsync.nodes.control.server import ControlServer
from shadowsync.nodes.runtime.node import Node
from shadowsync.nodes.shadow.center_connection import CenterConnection
from shadowsync.pipeline.wire import sockets
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener

from .in_process_node import InProcess, current_node

COORDINATOR = "coordinator"


class CutLinks:
    """A fault of `in_process`: links between nodes, by name, as a network has them.

    They are those of workers, of centers, and of all nodes to the coordinator, but not those between
    trainers. Any thread may cut and mend.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cut: set[frozenset[str]] = set()
        self._lost: Counter[frozenset[str]] = Counter()
        self._at: dict[str, InProcess] = {}
        self._of_token: dict[bytes, InProcess] = {}

    def cut(self, one: str, other: str) -> None:
        """From now on nothing passes between two nodes."""
        with self._lock:
            self._cut.add(frozenset((one, other)))

    def mend(self, one: str, other: str) -> None:
        """From now on the two are heard by each other again."""
        with self._lock:
            self._cut.discard(frozenset((one, other)))

    def lost(self, one: str, other: str) -> int:
        """How many messages were lost between two nodes."""
        with self._lock:
            return self._lost[frozenset((one, other))]

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        self._plant_workers(patch)
        self._plant_centers(patch)
        self._plant_control(patch)

    def _passes(self, to: InProcess | None) -> bool:
        """Whether what this thread's node sends gets there; a node has its name once it has joined."""
        return to is None or self._passes_to(to.name)

    def _passes_to(self, name: str) -> bool:
        node = current_node()
        pair = frozenset((node.name if node is not None else "", name))
        with self._lock:
            is_cut = pair in self._cut
            self._lost[pair] += is_cut
        return not is_cut

    def _at_end_of(self, identity: bytes) -> InProcess | None:
        return self._of_token.get(identity.partition(b"/")[0])

    def _plant_workers(self, patch: pytest.MonkeyPatch) -> None:
        listen, connection_send, listener_send = Listener.__init__, Connection.send, Listener.send

        def listening(own: Listener, *arguments: Any) -> None:
            listen(own, *arguments)
            if (node := current_node()) is not None:
                self._at[own.endpoint] = node

        def from_worker(own: Connection, message: Message) -> None:
            if self._passes(self._at.get(own.endpoint)):
                connection_send(own, message)

        def from_service(own: Listener, identity: bytes, message: Message) -> None:
            if self._passes(self._at_end_of(identity)):
                listener_send(own, identity, message)

        patch.setattr(Listener, "__init__", listening)
        patch.setattr(Connection, "send", from_worker)
        patch.setattr(Listener, "send", from_service)

    def _plant_centers(self, patch: pytest.MonkeyPatch) -> None:
        init, send = CenterConnection.__init__, sockets.send_frames
        at: dict[Any, str] = {}

        def made(own: CenterConnection, *given: Any, **options: Any) -> None:
            init(own, *given, **options)
            at[own.socket] = own.member.name

        def from_trainer(socket: Any, frames: list[Any], flags: int) -> None:
            if self._passes_to(at.get(socket, "")):
                send(socket, frames, flags)

        patch.setattr(CenterConnection, "__init__", made)
        patch.setattr("shadowsync.nodes.shadow.center_connection.send_frames", from_trainer)

    def _plant_control(self, patch: pytest.MonkeyPatch) -> None:
        node_send, server_send = Node._send, ControlServer._send

        def from_node(own: Node, message: Message) -> None:
            if (node := current_node()) is not None:
                self._of_token[own.settings.token.encode()] = node
            if self._passes_to(COORDINATOR):
                node_send(own, message)

        def from_server(own: ControlServer, identity: bytes, message: Message) -> None:
            if self._passes(self._at_end_of(identity)):
                server_send(own, identity, message)

        patch.setattr(Node, "_send", from_node)
        patch.setattr(ControlServer, "_send", from_server)
