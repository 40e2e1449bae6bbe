"""A saved model that is served: on a loop of the test's own, or by the command."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.serving.server import ModelServer

from ..jobs.checkpoint_copies import replace_checkpoint
from ..jobs.processes import Process, Starter, until, wait_until

SECONDS = 120.0
T = TypeVar("T")


@asynccontextmanager
async def served(
    model: FollowedModel, host: str = "127.0.0.1", *, look_seconds: float | None = None
) -> AsyncIterator[ModelServer]:
    """Serves the model on this loop, and looks so often for a newer one, if that is given."""
    server = ModelServer(model, host, 0)
    await server.start()
    tasks = [] if look_seconds is None else [asyncio.ensure_future(server.follow(look_seconds))]
    try:
        yield server
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.close()


def with_server(model: FollowedModel, work: Callable[[ModelServer], T], host: str = "127.0.0.1") -> T:
    """What some work gives that is done on a thread, beside the server."""

    async def both() -> T:
        async with served(model, host) as server:
            return await asyncio.to_thread(work, server)

    return asyncio.run(asyncio.wait_for(both(), SECONDS))


def client_of(server: ModelServer) -> ScoringClient:
    """A client of a server on this machine."""
    return ScoringClient(f"http://127.0.0.1:{server.port}")


def with_client(model: FollowedModel, work: Callable[[ScoringClient], T]) -> T:
    """What a client gets of a server."""

    def ask(server: ModelServer) -> T:
        with client_of(server) as client:
            return work(client)

    return with_server(model, ask)


@contextmanager
def served_by_command(
    starter: Starter, *arguments: str, path: str = "score"
) -> Iterator[tuple[Process, ScoringClient]]:
    """`shadowsync serve` with these arguments, and a client of it; Ctrl-C ends it."""
    process = starter.fork("serve", *arguments, "--port", "0")
    wait_until(lambda: f"/{path}" in process.text() or process.poll() is not None, "it serves")
    (address,) = re.findall(rf"(http://127\.0\.0\.1:\d+)/{path}", process.text())
    try:
        with ScoringClient(address) as client:
            yield process, client
    finally:
        process.signal(signal.SIGINT)
    assert process.wait() == 0, process.text()


def replies_while_replaced(
    model: FollowedModel, run: Path, copies: Mapping[int, Path], path: str, body: Any
) -> list[dict[str, Any]]:
    """What is replied to a request, by whichever model, while copies take the place of the run's checkpoint.

    The first copy is there, and each is asked several times; they are given by their trained examples.
    """
    replies, sent = list[dict[str, Any]](), json.dumps(body).encode()

    async def ask(server: ModelServer, done: asyncio.Event) -> None:
        def request() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/{path}", sent) as reply:
                replies.append(json.load(reply))

        while not done.is_set():
            await asyncio.to_thread(request)

    def has_answered(examples: int) -> bool:
        return [reply["model"]["examples_trained"] for reply in replies].count(examples) >= 6

    async def both() -> None:
        done = asyncio.Event()
        async with served(model, look_seconds=0.01) as server:
            asking = [asyncio.ensure_future(ask(server, done)) for _ in range(3)]
            for at, (examples, copy) in enumerate(copies.items()):
                if at:
                    replace_checkpoint(run, copy)
                await until(partial(has_answered, examples), "the next one is served")
            done.set()
            await asyncio.gather(*asking)

    asyncio.run(asyncio.wait_for(both(), SECONDS))
    assert {reply["model"]["examples_trained"] for reply in replies} == set(copies)
    return replies
