"""The relay's process: `python -m shadowsync.nodes.supervisor.relay_main SPEC`, started by the supervisor.

SPEC is JSON: {"delay_seconds", "bytes_per_second", "doors": [[listen, target], ...]}. It prints the endpoints
of its doors when all are open, and what it cost when it is told to end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

from ..runtime.process import watch_supervisor
from .relay import Door


async def serve(spec: dict[str, Any]) -> None:
    """Opens every door and relays until SIGTERM, or until the supervisor is gone."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    watch_supervisor(loop, ended.set)
    doors, endpoints = [], []
    for listen, target in spec["doors"]:
        door = Door(target, spec["delay_seconds"], spec["bytes_per_second"])
        endpoints.append(await door.open(listen))
        doors.append(door)
    print(json.dumps({"doors": endpoints}), flush=True)
    await ended.wait()
    figures = {
        "cpu_seconds": time.process_time(),
        "bytes": sum(door.inward.bytes + door.outward.bytes for door in doors),
        "connections": sum(door.connections for door in doors),
    }
    print(json.dumps({"figures": figures}), flush=True)
    for door in doors:
        await door.close()


def main() -> int:
    """The exit code: 1 with a line that says why where a door could not be opened."""
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except OSError as error:
        print(f"shadowsync relay: cannot listen ({error.strerror or error})", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
