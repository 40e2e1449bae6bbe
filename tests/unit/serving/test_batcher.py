"""Which requests are scored together: those of clients that ask again at once, and never too many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from shadowsync.serving import batcher as batcher_module
from shadowsync.serving.batcher import Batcher
from shadowsync.serving.rows import RowColumns
from shadowsync.serving.scores import Scores

CLIENTS = 8
ROUNDS = 5
ONE_ROW = RowColumns(1, {})


class Recorded:
    """A model without weights, which records how many requests it scores at once."""

    def __init__(self) -> None:
        self.together: list[int] = []

    def score(self, requests: Sequence[RowColumns]) -> list[Scores]:
        self.together.append(len(requests))
        return [cast(Scores, at) for at in range(len(requests))]


def batches_of(clients: Any) -> list[int]:
    """The sizes of the batches while `clients(batcher)` runs."""
    model = Recorded()

    async def body() -> None:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(model.score, 10_000, thread)
            await clients(batcher)
            await batcher.close()

    asyncio.run(asyncio.wait_for(body(), 30.0))
    return model.together


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ask_again_and_again(batcher: Batcher[RowColumns, Scores], count: int = CLIENTS) -> None:
    """Each client asks a few passes of the loop after its answer, one after the other."""

    async def client(at: int) -> None:
        for _ in range(ROUNDS):
            await batcher.answer(ONE_ROW)
            await passes(at)

    await asyncio.gather(*map(client, range(count)))


def test_clients_that_ask_again_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batches_of(ask_again_and_again) == [CLIENTS] * ROUNDS
    monkeypatch.setattr(batcher_module, "IDLE_PASSES", 0)
    assert min(batches_of(ask_again_and_again)) < CLIENTS, "the control: whoever is first is scored at once"


def test_a_client_alone_is_scored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = list[bool]()
    gather = Batcher._gather

    async def noted(batcher: Batcher[RowColumns, Scores]) -> None:
        gathered.append(True)
        await gather(batcher)

    monkeypatch.setattr(Batcher, "_gather", noted)
    assert batches_of(lambda batcher: ask_again_and_again(batcher, 1)) == [1] * ROUNDS
    assert not gathered
    batches_of(ask_again_and_again)
    assert gathered, "the control"


async def never_stop_to_arrive(batcher: Batcher[RowColumns, Scores]) -> None:
    """After the first answers a new request comes in each pass."""
    await asyncio.gather(batcher.answer(ONE_ROW), batcher.answer(ONE_ROW))
    asked = []
    for _ in range(300):
        asked.append(asyncio.ensure_future(batcher.answer(ONE_ROW)))
        await asyncio.sleep(0)
    await asyncio.gather(*asked)


def test_arriving_requests_do_not_put_off_the_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    most = batcher_module.MOST_GATHERED
    assert batches_of(never_stop_to_arrive)[1] <= most + 2
    monkeypatch.setattr(batcher_module, "MOST_GATHERED", 1000)
    assert batches_of(never_stop_to_arrive)[1] > 2 * most, "the control"
