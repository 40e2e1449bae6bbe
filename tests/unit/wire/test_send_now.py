"""Sending from a loop without waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import zmq
import zmq.asyncio
from shadowsync.pipeline.wire.sockets import configure_socket, send_now

Work = Callable[[zmq.asyncio.Socket, zmq.asyncio.Socket], Awaitable[None]]


def with_sockets(work: Work) -> None:
    """Runs `work` with a bound ROUTER and a DEALER that is not connected, and closes both."""

    async def main() -> None:
        context = zmq.asyncio.Context(io_threads=1)
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for end in (router, dealer):
            configure_socket(end)
            end.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.bind("tcp://127.0.0.1:*")
        dealer.setsockopt_string(zmq.IDENTITY, "node")
        try:
            await asyncio.wait_for(work(router, dealer), 60.0)
        finally:
            router.close()
            dealer.close()
            context.term()

    asyncio.run(main())


def test_a_message_is_queued_and_arrives() -> None:
    async def work(router: zmq.asyncio.Socket, dealer: zmq.asyncio.Socket) -> None:
        dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
        assert send_now(dealer, [b"one", b"two"])
        assert await router.recv_multipart() == [b"node", b"one", b"two"]
        assert send_now(router, [b"node", b"back"])
        assert await dealer.recv_multipart() == [b"back"]

    with_sockets(work)


def test_to_a_stranger_nothing_is_sent_and_nothing_raised() -> None:
    async def work(router: zmq.asyncio.Socket, dealer: zmq.asyncio.Socket) -> None:  # noqa: ARG001
        assert not send_now(router, [b"stranger", b"one"])

    with_sockets(work)


def test_a_full_queue_takes_nothing_and_does_not_wait() -> None:
    async def work(router: zmq.asyncio.Socket, dealer: zmq.asyncio.Socket) -> None:  # noqa: ARG001
        dealer.setsockopt(zmq.SNDHWM, 3)
        # A port that is taken and never listens; one that has just been closed may still accept.
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            dealer.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
            assert [send_now(dealer, [b"x"]) for _ in range(5)] == [True, True, True, False, False]

    with_sockets(work)


def test_another_error_is_raised() -> None:
    async def work(router: zmq.asyncio.Socket, dealer: zmq.asyncio.Socket) -> None:  # noqa: ARG001
        dealer.close()
        with pytest.raises(zmq.ZMQError):
            send_now(dealer, [b"x"])

    with_sockets(work)
