"""The relay of an emulated network, a process.

It has a listener in the place of each node. The supervisor starts it as `python -m
shadowsync.lab.network.relay SPEC`, where SPEC is JSON: {"delay_seconds", "bytes_per_second", "listeners":
[[node, listen, target], ...], "control"}. It prints the endpoints of its listeners when all are open, and its
own costs when it is told to end. At the endpoint `control`, unless that is null, it takes faults of links:
see `link_faults`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

from ...nodes.runtime.process import exit_when_parent_dies
from ...pipeline.open_files import most_of_files
from .link_faults import LinkFaultServer
from .proxy import MOST_CONNECTIONS, ProxyListener


async def serve(spec: dict[str, Any]) -> None:
    """Open every listener and relay until SIGTERM, or until the supervisor is gone."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    exit_when_parent_dies(loop, ended.set)
    listeners: dict[str, ProxyListener] = {}
    endpoints = []
    # Two thirds of the files, over all listeners.
    most = most_of_files(MOST_CONNECTIONS, 3 * max(1, len(spec["listeners"])))
    for node, listen, target in spec["listeners"]:
        listeners[node] = ProxyListener(target, spec["delay_seconds"], spec["bytes_per_second"], most)
        endpoints.append(await listeners[node].open(listen))
    control = LinkFaultServer(listeners)
    if spec["control"] is not None:
        await control.open(spec["control"])
    print(json.dumps({"listeners": endpoints}), flush=True)
    await ended.wait()
    figures = {
        "cpu_seconds": time.process_time(),
        "bytes": sum(listener.inward.bytes + listener.outward.bytes for listener in listeners.values()),
        "connections": sum(listener.connections for listener in listeners.values()),
        "refused": sum(listener.refused for listener in listeners.values()),
    }
    print(json.dumps({"figures": figures}), flush=True)
    await control.close()
    for listener in listeners.values():
        await listener.close()


def main() -> int:
    """Run the relay.

    Returns the exit code, 1 if a listener cannot be opened.
    """
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except OSError as error:
        print(f"shadowsync relay: cannot listen ({error.strerror or error})", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
