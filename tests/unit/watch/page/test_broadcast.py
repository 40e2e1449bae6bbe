"""Server-sent events: order, what a client that comes back gets, and clients that do not keep up."""

from __future__ import annotations

import asyncio
import re

import pytest
from shadowsync.tests.support.coroutines import run_by
from shadowsync.watch.page.broadcast import (
    MOST_CLIENTS,
    QUEUED_EVENTS,
    REMEMBERED_EVENTS,
    Broadcast,
    Client,
    Full,
)


def nothing() -> None:
    """For a client that is never dropped."""


def join(broadcast: Broadcast, last_id: str = "") -> Client:
    return broadcast.join(last_id, lambda: "whole", nothing)


async def taken(client: Client) -> list[tuple[str, str, str]]:
    """(id, kind, data) of what waits for a client."""
    found = []
    while client.waiting:
        event = await client.next()
        assert event is not None
        match = re.fullmatch(r"id: (.+)\nevent: (.+)\ndata: (.+)\n\n", event.decode())
        assert match is not None
        found.append((match[1], match[2], match[3]))
    return found


@run_by(asyncio.run)
async def test_a_new_client_gets_the_whole_and_then_what_is_published() -> None:
    broadcast = Broadcast()
    broadcast.publish("status", "before")
    client = join(broadcast)
    broadcast.publish("status", "one")
    broadcast.publish("status", "two")
    events = await taken(client)
    assert [event[1:] for event in events] == [("whole", "whole"), ("status", "one"), ("status", "two")]
    broadcast.end()
    assert await client.next() is None


@run_by(asyncio.run)
async def test_a_client_that_comes_back_gets_what_it_missed() -> None:
    broadcast = Broadcast()
    first = join(broadcast)
    broadcast.publish("status", "one")
    last_id = (await taken(first))[-1][0]
    broadcast.leave(first)
    broadcast.publish("status", "two")
    broadcast.publish("status", "three")
    assert [data for _, _, data in await taken(join(broadcast, last_id))] == ["two", "three"]
    for _ in range(REMEMBERED_EVENTS):
        broadcast.publish("status", "later")
    assert [kind for _, kind, _ in await taken(join(broadcast, last_id))] == ["whole"]


@pytest.mark.parametrize("last_id", ["", "x", "other-1", "-1", "{own}-99", "{own}-x", "{own}-"])
@run_by(asyncio.run)
async def test_an_id_that_says_nothing_gets_the_whole(last_id: str) -> None:
    broadcast = Broadcast()
    broadcast.publish("status", "one")
    known = (await taken(join(broadcast)))[0][0].partition("-")[0]
    client = join(broadcast, last_id.replace("{own}", known))
    assert [kind for _, kind, _ in await taken(client)] == ["whole"]


@run_by(asyncio.run)
async def test_a_client_that_does_not_keep_up_is_dropped_and_the_others_are_not() -> None:
    broadcast = Broadcast()
    dropped = []
    slow = broadcast.join("", lambda: "whole", lambda: dropped.append("slow"))
    fast = broadcast.join("", lambda: "whole", lambda: dropped.append("fast"))
    for number in range(10 * QUEUED_EVENTS):
        broadcast.publish("status", str(number))
        await taken(fast)
    assert dropped == ["slow"]
    assert broadcast.clients == {fast}
    assert slow.waiting == 0
    assert await slow.next() is None


@run_by(asyncio.run)
async def test_there_are_no_more_clients_than_allowed() -> None:
    broadcast = Broadcast()
    clients = [join(broadcast) for _ in range(MOST_CLIENTS)]
    with pytest.raises(Full):
        join(broadcast)
    broadcast.leave(clients[0])
    join(broadcast)
