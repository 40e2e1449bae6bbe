"""Connections through a slow network: what passes, when, how much of it at once, and faults of links.

What is about time runs on a clock that stands still while there is anything to do, so figures are exact.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from shadowsync.lab.network import proxy
from shadowsync.lab.network.link_faults import LinkFault, LinkFaultServer, request_link_fault
from shadowsync.lab.network.proxy import ProxyListener, ThrottledLink
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.jobs.processes import until
from shadowsync.tests.support.outside.other_user import greeting_of

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PATIENCE = 60.0


class Behind:
    """A node behind a proxy listener, and connections through it or around it."""

    def __init__(self, listener: ProxyListener, near: str, target: str) -> None:
        self.listener, self.near, self.target = listener, near, target
        self.opened: list[asyncio.StreamWriter] = []

    async def connect(self, *, around: bool = False) -> Ends:
        endpoint = self.target if around else self.near
        if endpoint.startswith("ipc://"):
            ends = await asyncio.open_unix_connection("\0" + endpoint.removeprefix("ipc://@"))
        else:
            ends = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self.opened.append(ends[1])
        return ends


@asynccontextmanager
async def behind(
    handler: Handler,
    *,
    delay: float = 0.0,
    rate: float | None = None,
    ipc: bool = False,
    most: int = proxy.MOST_CONNECTIONS,
) -> AsyncIterator[Behind]:
    """A server with `handler`, and a proxy listener before it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    if ipc:
        target = local_address(uuid4().hex)
        server = await asyncio.start_unix_server(handle, "\0" + target.removeprefix("ipc://@"))
    else:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        target = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    listener = ProxyListener(target, delay, rate, most)
    near = await listener.open(local_address(uuid4().hex) if ipc else "tcp://127.0.0.1:0")
    place = Behind(listener, near, target)
    try:
        async with asyncio.timeout(PATIENCE):
            yield place
    finally:
        for writer in place.opened:
            writer.close()
        server.close()
        await listener.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with how many bytes came, once the end came."""
    total = 0
    while data := await reader.read(1 << 18):
        total += len(data)
    writer.write(struct.pack("<Q", total))
    await writer.drain()


async def seconds_of(work: Awaitable[object]) -> float:
    """How long it takes by the loop's clock."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await work
    return loop.time() - begun


async def round_trip(ends: Ends) -> None:
    """A question and its answer."""
    reader, writer = ends
    writer.write(b"?")
    await reader.readexactly(1)


def test_a_line_without_a_rate_only_delays() -> None:
    link = ThrottledLink(0.5, None)
    assert [link.arrival_time(now, 1 << 20) for now in (1.0, 1.0, 2.0)] == [1.5, 1.5, 2.5]
    assert link.bytes == 3 << 20
    # Without a delay nothing is added.
    assert ThrottledLink(0.0, None).arrival_time(1.0, 1 << 20) == 1.0


def test_a_line_with_a_rate_lets_one_pass_after_the_other() -> None:
    link = ThrottledLink(0.5, 100.0)
    assert link.arrival_time(1.0, 50) == 2.0
    # Behind the first, although it entered at the same time.
    assert link.arrival_time(1.0, 50) == 2.5
    # The line was free again in between: nothing is saved up.
    assert link.arrival_time(10.0, 50) == 11.0
    assert link.arrival_time(10.0, 0) == 11.0


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("user", "echoed"), [(0, b"1"), (65534, b"0")])
@run_by(asyncio.run)
async def test_it_passes_nothing_of_another_user(user: int, echoed: bytes) -> None:
    async with behind(echo, ipc=True) as place:
        assert await asyncio.to_thread(greeting_of, place.near, user) == echoed


@pytest.mark.parametrize("ipc", [False, True])
@run_by(asyncio.run)
async def test_every_byte_passes_in_order_on_every_connection(ipc: bool) -> None:
    async def one(place: Behind) -> None:
        reader, writer = await place.connect()
        sent = os.urandom(1_500_000)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent

    async with behind(echo, delay=0.01, ipc=ipc) as place:
        await asyncio.gather(*(one(place) for _ in range(6)))
        assert place.listener.connections == 6
        assert place.listener.inward.bytes == place.listener.outward.bytes == 6 * 1_500_000


@pytest.mark.parametrize("delay", [0.03, 0.1])
@run_by(run_in_virtual_time)
async def test_an_answer_takes_twice_the_delay(delay: float) -> None:
    async with behind(echo, delay=delay, ipc=True) as place:
        near, around = await place.connect(), await place.connect(around=True)
        assert await seconds_of(round_trip(near)) == pytest.approx(2 * delay)
        assert await seconds_of(round_trip(around)) == 0.0, "the control"


async def _counted(place: Behind, size: int) -> None:
    reader, writer = await place.connect()
    writer.write(bytes(size))
    writer.write_eof()
    assert struct.unpack("<Q", await reader.readexactly(8)) == (size,)


def test_the_rate_is_of_all_connections_together() -> None:
    async def seconds_for(rate: float | None, connections: int) -> float:
        async with behind(count, rate=rate, ipc=True) as place:
            return await seconds_of(asyncio.gather(*(_counted(place, 500_000) for _ in range(connections))))

    async def main() -> None:
        # The answers have 8 bytes each.
        for connections in (1, 4):
            wanted = 0.05 * connections + 8e-7
            assert await seconds_for(10e6, connections) == pytest.approx(wanted, abs=8e-7 * connections)
            assert await seconds_for(None, connections) == 0.0, "the control"

    run_in_virtual_time(main())


def test_each_direction_has_its_own_rate() -> None:
    async def there_and_back(place: Behind) -> None:
        reader, writer = await place.connect()
        writer.write(bytes(2_000_000))
        writer.write_eof()
        assert len(await reader.read(-1)) == 2_000_000

    async def main() -> None:
        async with behind(echo, rate=10e6, ipc=True) as place:
            # Both at once, the way back later by what is read together; one line for both would take 0.4 s.
            assert 0.2 < await seconds_of(there_and_back(place)) < 0.3

    run_in_virtual_time(main())


async def _taken(place: Behind) -> int:
    """How much a sender gets rid of while nothing has arrived."""
    with socket.socket(socket.AF_UNIX) as sender:
        sender.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sender, "\0" + place.near.removeprefix("ipc://@"))
        total = 0
        try:
            while total < 64 << 20:
                await asyncio.wait_for(loop.sock_sendall(sender, bytes(1 << 18)), 0.5)
                total += 1 << 18
        except TimeoutError:
            return total
        return total


def test_what_is_on_the_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[int, int]:
        taken = []
        for bound in (1 << 20, 40 << 20):
            monkeypatch.setattr(proxy, "MAX_ON_THE_WAY", bound)
            async with behind(echo, delay=5.0, ipc=True) as place:
                taken.append(await _taken(place))
        return taken[0], taken[1]

    little, much = run_in_virtual_time(main())
    # The rest is in the sockets' buffers.
    assert 1 << 20 <= little < 12 << 20
    assert much >= 40 << 20, "the control"


@run_by(run_in_virtual_time)
async def test_the_end_of_a_connection_travels_behind_its_bytes() -> None:
    async def one_word(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"farewell")

    async with behind(one_word, delay=0.1, ipc=True) as place:
        loop, begun = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        reader, _ = await place.connect()
        for word in (b"farewell", b""):
            assert await reader.read(100) == word
            assert loop.time() - begun == pytest.approx(0.1)


@pytest.mark.parametrize("how", ["closed", "reset"])
@run_by(asyncio.run)
async def test_the_node_learns_that_its_peer_is_gone(how: str) -> None:
    gone = asyncio.Event()

    async def until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        try:
            assert await reader.readexactly(1) == b"x"
            assert await reader.read(1) == b""
        finally:
            gone.set()

    async with behind(until_the_end, delay=0.02) as place:
        _, writer = await place.connect()
        writer.write(b"x")
        await writer.drain()
        if how == "reset":
            one = writer.get_extra_info("socket")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert not gone.is_set(), "the control"
        writer.close()
        await gone.wait()


@run_by(asyncio.run)
async def test_a_peer_learns_that_the_node_is_gone() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.transport.abort()

    async with behind(leave, delay=0.02) as place:
        reader, writer = await place.connect()
        writer.write(b"x")
        assert await reader.read(-1) == b""


@run_by(asyncio.run)
async def test_where_nobody_listens_the_connection_ends() -> None:
    async with behind(echo) as place:
        place.listener.target = local_address(uuid4().hex)
        reader, _ = await place.connect()
        assert await reader.read(1) == b""


@run_by(run_in_virtual_time)
async def test_a_stalled_link_is_half_open() -> None:
    got: list[bytes] = []

    async def keep_and_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            got.append(data)
            writer.write(data)

    async with behind(keep_and_echo, ipc=True) as place:
        ends = await place.connect()
        await round_trip(ends)
        loop = asyncio.get_running_loop()
        LinkFault("reader-0", "stall", 2.0).inject(place.listener, loop.time())
        waited = asyncio.create_task(seconds_of(round_trip(ends)))
        await asyncio.sleep(1.0)
        assert got == [b"?", b"?"], "what goes to the node arrives"
        assert not waited.done()
        assert await waited == pytest.approx(2.0)
        assert await seconds_of(round_trip(ends)) == 0.0, "it has ended"


@run_by(run_in_virtual_time)
async def test_a_delayed_link_is_slow_both_ways_for_a_while() -> None:
    async with behind(echo, ipc=True) as place:
        ends = await place.connect()
        loop = asyncio.get_running_loop()
        LinkFault("reader-0", "delay", 1.5).inject(place.listener, loop.time())
        assert await seconds_of(round_trip(ends)) == pytest.approx(1.0)
        await asyncio.sleep(0.6)
        assert await seconds_of(round_trip(ends)) == 0.0, "it has ended"


async def _can_talk(place: Behind) -> bool:
    try:
        await round_trip(await place.connect())
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return True


@run_by(run_in_virtual_time)
async def test_a_reset_ends_connections_once_and_a_cut_for_a_while() -> None:
    async with behind(echo, ipc=True) as place:
        loop = asyncio.get_running_loop()
        for fault, afterwards in ((LinkFault("a", "reset"), True), (LinkFault("a", "cut", 2.0), False)):
            reader, writer = await place.connect()
            await round_trip((reader, writer))
            fault.inject(place.listener, loop.time())
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await round_trip((reader, writer))
            assert await _can_talk(place) is afterwards
        await asyncio.sleep(2.1)
        assert await _can_talk(place)


@run_by(asyncio.run)
async def test_faults_are_requested_over_a_socket() -> None:
    endpoint = local_address(uuid4().hex)
    async with behind(echo, ipc=True) as place:
        server = LinkFaultServer({"reader-0": place.listener})
        await server.open(endpoint)
        ends = await place.connect()
        await round_trip(ends)
        fault = LinkFault("reader-0", "reset")
        assert await asyncio.to_thread(request_link_fault, endpoint, fault) == 2
        assert await ends[0].read(1) == b""
        with pytest.raises(ValueError, match="reader-1"):
            await asyncio.to_thread(request_link_fault, endpoint, LinkFault("reader-1", "reset"))
        await server.close()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(request_link_fault, endpoint, fault)


@pytest.mark.parametrize(("kind", "seconds"), [("melt", 1.0), ("cut", -1.0), ("cut", float("nan"))])
def test_a_fault_that_cannot_be_is_refused(kind: Any, seconds: float) -> None:
    with pytest.raises(ValueError, match="is not"):
        LinkFault("reader-0", kind, seconds)


@pytest.mark.parametrize("ipc", [False, True], ids=["tcp", "ipc"])
@run_by(asyncio.run)
async def test_connections_beyond_the_bound_cost_those_that_have_sent_nothing(ipc: bool) -> None:
    async with behind(echo, ipc=ipc, most=3) as place:
        nodes = [await place.connect() for _ in range(2)]
        for node in nodes:
            await round_trip(node)
        strangers = [await place.connect() for _ in range(50)]
        # The newest one is still there; the others were closed for it, one after the other.
        for reader, _ in strangers[:-1]:
            assert await ended(reader)
        # Connections to the node that were on their way for them are closed when they have come.
        await until(lambda: place.listener.open_ends <= 2 * 3, "the others are closed at both ends")
        for node in nodes:
            await round_trip(node)
        await round_trip(strangers[-1])
        # All three have sent something: one more is turned away before anything is read.
        reader, writer = await place.connect()
        writer.write(b"?")
        assert await ended(reader)
        for node in (*nodes, strangers[-1]):
            await round_trip(node)
        assert place.listener.refused == 50
        # Where one has gone there is room.
        nodes[0][1].write_eof()
        assert await nodes[0][0].read() == b""
        await round_trip(await place.connect())


@run_by(run_in_virtual_time)
async def test_a_connection_that_sends_nothing_is_closed() -> None:
    async with behind(echo, ipc=True) as place:
        node = await place.connect()
        await round_trip(node)
        stranger, _ = await place.connect()
        waited = await seconds_of(ended(stranger))
        assert waited == pytest.approx(proxy.SILENT_SECONDS, abs=0.1)
        await round_trip(node)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other end closed it, rather than answer."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
