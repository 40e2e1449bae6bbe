"""Faults of links, which the relay injects on request.

A request is a line of JSON, the fields of `LinkFault`; the reply is a line with `{"ends": N}`, the number of
open ends of connections, or `{"error": TEXT}`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from .proxy import ProxyListener, is_own_user, unix_path

LINK_FAULTS: Final = ("reset", "cut", "stall", "delay")
# What "delay" adds: more than a retransmission waits for.
ADDED_DELAY_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 3600.0
PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class LinkFault:
    """A fault of all links to a node.

    Attributes:
        node: the node that the others connect to, for example "embedding-0".
        kind: "reset" ends the connections once; "cut" also ends each new one; "stall" holds back what the
            node sends, so that its links are half open; "delay" adds 0.5 s both ways.
        seconds: its duration; a reset has none.
    """

    node: str
    kind: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check the values; raises ValueError."""
        if self.kind not in LINK_FAULTS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(LINK_FAULTS)}")
        if not 0 <= self.seconds <= LONGEST_SECONDS:
            raise ValueError(f"seconds {self.seconds!r} is not between 0 and {LONGEST_SECONDS:g}")

    def inject(self, listener: ProxyListener, now: float) -> None:
        """Begin the fault at `now`, in the loop's time."""
        until = now + self.seconds
        match self.kind:
            case "reset":
                listener.reset()
            case "cut":
                listener.cut(until)
            case "stall":
                listener.outward.hold(until)
            case "delay":
                for link in (listener.inward, listener.outward):
                    link.delay_more(ADDED_DELAY_SECONDS, until)


class LinkFaultServer:
    """A socket for requests of faults, on the relay's loop.

    Only processes of the same user may use it.
    """

    def __init__(self, listeners: Mapping[str, ProxyListener]) -> None:
        self._listeners = listeners
        self._server: asyncio.AbstractServer | None = None

    async def open(self, endpoint: str) -> None:
        """Listen at `ipc://@NAME`; raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, unix_path(endpoint))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if is_own_user(writer.transport):
                writer.write(json.dumps(self._reply(await reader.readline())).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            return
        finally:
            writer.close()

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            fault = LinkFault(**json.loads(line))
            listener = self._listeners[fault.node]
        except (ValueError, TypeError, KeyError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        ends = listener.open_ends
        fault.inject(listener, asyncio.get_running_loop().time())
        return {"ends": ends}


def request_link_fault(endpoint: str, fault: LinkFault) -> int:
    """Have a relay inject a fault; return the number of open ends of connections.

    Blocks until the relay has replied. Raises OSError if no relay listens or replies, and ValueError if it
    refuses.
    """
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as replies:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(unix_path(endpoint))
        connection.sendall(json.dumps(asdict(fault)).encode() + b"\n")
        line = replies.readline()
    if not line:
        raise ConnectionError("the relay closed the connection without a reply")
    reply = json.loads(line)
    if "error" in reply:
        raise ValueError(f"the relay refuses {fault}: {reply['error']}")
    return int(reply["ends"])
