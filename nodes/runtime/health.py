"""Health of a node: its report, and the Unix socket that serves it.

The environment variable SHADOWSYNC_HEALTH names the socket's path; images set it. The control loop itself
answers: a process that is stopped, or whose loop is stuck, does not, and nothing that it has left behind can
answer for it. For probes that come often, the loop also touches two files beside the socket, of which only
the age counts: PATH.alive always, and PATH.healthy while the node is healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...pipeline.errors import ClusterError
from ...pipeline.text.format import duration

VARIABLE = "SHADOWSYNC_HEALTH"
MAX_REPLY_BYTES = 1 << 16
MARK_SECONDS = 2.0
ALIVE, HEALTHY = ".alive", ".healthy"
_OLD_SECONDS = 20


@dataclass(frozen=True)
class Health:
    """A node's health: a verdict, the reason in one line, and figures."""

    healthy: bool
    text: str
    figures: dict[str, Any] = field(default_factory=dict)


def health_path(*, supervised: bool) -> Path | None:
    """Return the path at which this process answers; None if it does not.

    The processes of `shadowsync run` share an environment, so only the coordinator passes `supervised` false
    and answers for all.
    """
    path = os.environ.get(VARIABLE, "")
    return Path(path) if path and not supervised else None


def probe(suffix: str) -> list[str]:
    """Return a command that fails unless a file of the container's node is fresh."""
    find = f'find "${VARIABLE}{suffix}" -newermt "-{_OLD_SECONDS} seconds"'
    return ["/bin/sh", "-c", f"{find} | grep -q ."]


async def serve_health(path: Path, describe: Callable[[], Health]) -> None:
    """Answer connections with one line of JSON, and touch the files, until cancelled.

    Removes the socket and the files at the end.

    Raises:
        ClusterError: another process answers there, or the path cannot be used.
    """

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps(asdict(describe())).encode() + b"\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    if await asyncio.to_thread(_is_served, path):
        raise ClusterError(
            "another node answers there", where=str(path), remedy=f"give each node a {VARIABLE} of its own"
        )
    try:
        server = await asyncio.start_unix_server(reply, path)
    except OSError as error:
        raise ClusterError(
            f"no socket can be created there ({error.strerror or error})",
            where=str(path),
            remedy=f"name a short path in a folder that can be written to in {VARIABLE}, or leave it unset",
        ) from error
    alive, healthy = (path.with_name(path.name + suffix) for suffix in (ALIVE, HEALTHY))
    try:
        # The loop itself touches them: a thread would go on where the loop is stuck.
        while True:
            alive.touch()
            if describe().healthy:
                healthy.touch()
            await asyncio.sleep(MARK_SECONDS)
    finally:
        server.close()
        # Not in a thread: this loop is ending.
        for left in (path, alive, healthy):
            left.unlink(missing_ok=True)


def request_health(path: Path, timeout_seconds: float) -> Health:
    """Request the health of the node at `path`.

    A node that does not reply in time is not healthy.

    Blocks its thread.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_seconds)
        received = b""
        try:
            sock.connect(str(path))
            while not received.endswith(b"\n") and len(received) < MAX_REPLY_BYTES:
                if not (part := sock.recv(4096)):
                    break
                received += part
        except TimeoutError:
            return Health(
                False,
                f"{path}: the node has not answered for {duration(timeout_seconds)}; it hangs or is stopped",
            )
        except OSError as error:
            return Health(False, f"{path}: no node answers ({error.strerror or error})")
    try:
        reply = json.loads(received)
        return Health(bool(reply["healthy"]), str(reply["text"]), dict(reply["figures"]))
    except (ValueError, KeyError, TypeError):
        return Health(False, f"{path}: the process that answers there is not a node")


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def coordinator_health(
    phase: str, trained: int, expected: Mapping[str, int], present: Mapping[str, int]
) -> Health:
    """Return the coordinator's health.

    A coordinator that answers is healthy: missing or dead nodes are the job's concern.
    """
    nodes = ", ".join(f"{present[role]} of {count} {role}" for role, count in expected.items() if count)
    figures = {"phase": phase, "trained": trained, "expected": dict(expected), "there": dict(present)}
    return Health(True, f"coordinator: {phase}, {trained:,} examples trained, {nodes}", figures)


def node_health(
    role: str, *, joined: bool, ready: bool, silence_seconds: float, limit_seconds: float
) -> Health:
    """Return another node's health.

    A node is healthy once joined, while the coordinator's last message is at most `limit_seconds` old.
    """
    figures = {"joined": joined, "ready": ready, "coordinator_silent_seconds": silence_seconds}
    if not joined:
        return Health(False, f"{role}: waiting for the coordinator", figures)
    if not ready:
        # It sends no heartbeats yet, so the coordinator has nothing to answer.
        return Health(True, f"{role}: starting", figures)
    text = f"{role}: last message from the coordinator {duration(silence_seconds)} ago"
    return Health(silence_seconds <= limit_seconds, text, figures)
