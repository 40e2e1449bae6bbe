"""An authenticator on a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq
from shadowsync.pipeline.wire.keys.curve import ZapAuthenticator
from shadowsync.pipeline.wire.keys.job_key import JobKey

from ..jobs.processes import wait_until

Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def gated(
    context: Context, key: JobKey | None, refused: Callable[[], None] = lambda: None
) -> Iterator[ZapAuthenticator]:
    """A gate on a loop of its own."""
    loop = asyncio.new_event_loop()
    made: list[ZapAuthenticator] = []

    async def serve() -> None:
        made.append(ZapAuthenticator(context, key, refused))
        try:
            await asyncio.Event().wait()
        finally:
            made[0].close()

    task = loop.create_task(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    wait_until(lambda: bool(made), "the gate is there")
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        wait_until(task.done, "the gate is closed")
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60.0)
        loop.close()
