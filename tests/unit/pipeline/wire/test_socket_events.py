"""Turns that are taken when sockets may have changed."""

from __future__ import annotations

import asyncio

import zmq
from shadowsync.pipeline.wire.socket_events import SocketTurns

Context = zmq.Context[zmq.Socket[bytes]]


def test_turns_are_taken_for_what_comes_and_what_was_there_and_none_after_the_end(context: Context) -> None:
    listener, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    listener.bind("inproc://turns")
    sender.connect("inproc://turns")

    async def work() -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()
        taken = 0

        def take_turn() -> None:
            nonlocal taken
            taken += 1
            while listener.poll(0):
                received.put_nowait(listener.recv())

        async def next_received() -> bytes:
            return await asyncio.wait_for(received.get(), 10.0)

        # No event of the descriptor reports it any more.
        sender.send(b"before")
        assert listener.poll(1000)
        turns = SocketTurns(take_turn, listener)
        assert await next_received() == b"before"
        sender.send(b"one")
        sender.send(b"other")
        assert [await next_received(), await next_received()] == [b"one", b"other"]

        before = taken
        turns.wake()
        turns.wake()
        assert taken == before, "others come first"
        await asyncio.sleep(0)
        assert taken == before + 1, "one turn for both"

        turns.wake()
        turns.close()
        turns.close()
        sender.send(b"after")
        descriptor = int(listener.getsockopt(zmq.FD))
        assert not asyncio.get_running_loop().remove_reader(descriptor), "nothing watches it any more"
        # The turn that was asked for before the end is a callback of the loop's next round.
        for _ in range(3):
            await asyncio.sleep(0)
        assert taken == before + 1

    asyncio.run(work())
    sender.close()
    listener.close()
