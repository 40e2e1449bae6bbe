"""What connections may hold without finishing a message."""

from __future__ import annotations

import os
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import zmq
from shadowsync.pipeline.wire import sockets
from shadowsync.pipeline.wire.keys import arrivals as arrivals_module
from shadowsync.pipeline.wire.keys.arrivals import Arrivals, received_bytes, wire_bytes
from shadowsync.pipeline.wire.keys.curve import ZapAuthenticator
from shadowsync.pipeline.wire.keys.job_key import JobKey
from shadowsync.pipeline.wire.sockets import Listener, configure_socket, connect
from shadowsync.tests.fuzz.keyless import greeting
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.gate import gated

Context = zmq.Context[zmq.Socket[bytes]]
MIB = 1 << 20
FRAME = bytes(MIB)
FRAMES = 600
# Of a message that nobody sees the end of: more than comes while the gate's thread has to wait for its turn.
ENDLESS_FRAMES = 4 * FRAMES
LARGEST = 4 * MIB
# ZeroMQ's own greeting and handshake.
MOST_OF_A_HANDSHAKE = 2_000
# A frame of a command with a length of 8 bytes (ZMTP 3.1).
LONG_COMMAND = b"\x06"


@contextmanager
def sender(context: Context, endpoint: str, identity: str) -> Iterator[zmq.Socket[bytes]]:
    """A peer with the key."""
    with closing(context.socket(zmq.DEALER)) as made:
        configure_socket(made)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt_string(zmq.IDENTITY, identity)
        connect(made, endpoint)
        yield made


def without_key(endpoint: str) -> socket.socket:
    """A connection of somebody who only knows ZeroMQ's protocol."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=60.0)
    made.sendall(greeting(b"CURVE"))
    return made


def is_shut_down(connection: socket.socket) -> bool:
    """Whether the other end has closed it, once what it sent before is read."""
    connection.setblocking(False)
    try:
        return connection.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@contextmanager
def peak_growth() -> Iterator[list[int]]:
    """Gives by how many bytes this process grew at most within the block."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = psutil.Process().memory_info().rss
    growth: list[int] = []
    yield growth
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    growth.append(int(peak.split()[1]) * 1024 - before)


@contextmanager
def held_back(endpoint: str, most: int) -> Iterator[str]:
    """An endpoint in front of another that passes on so many bytes to it, and no more until it is closed.

    How much comes before the gate looks is up to the machine otherwise.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:

        def relay() -> None:
            near = stack.enter_context(server.accept()[0])
            far = stack.enter_context(socket.create_connection((host, int(port))))
            left = most
            passed: bytes | bool = True
            with suppress(ConnectionError):
                while passed:
                    for one in select.select([near, far] if left else [far], [], [])[0]:
                        passed = data = one.recv(min(left, MIB) if one is near else MIB)
                        (far if one is near else near).sendall(data)
                        left -= len(data) if one is near else 0
            # Libzmq aborts if it is cut off while a socket is closed that has sent a message in part.
            with suppress(ConnectionError):
                while near.recv(MIB):
                    continue

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        thread.join(60.0)


def taken(listener: Listener, messages: int) -> None:
    """Take so many messages of admitted peers."""
    for _ in range(messages):
        assert listener.socket.poll(60_000)
        listener.receive()


def test_bytes_on_the_wire_are_those_that_the_kernel_counts(
    context: Context, listen: Callable[..., Listener]
) -> None:
    """Of frames of every kind of length; otherwise what a connection holds would drift away."""
    listener = listen()
    messages = [[b""], [b"x" * 222], [b"x" * 223], [b"x" * 40_000, b"", b"y" * 300]] * 50
    with sender(context, listener.endpoint, "t/0") as peer:
        over: list[int] = []
        counted = 0
        for message in messages:
            peer.send_multipart(message)
            parts = listener.socket.recv_multipart(copy=False)
            counted += wire_bytes([len(part) for part in parts[1:]])
            over.append(received_bytes(int(parts[-1].get(int(zmq.SRCFD)))) - counted)
    assert 0 < over[0] < MOST_OF_A_HANDSHAKE
    assert set(over) == {over[0]}


@pytest.mark.parametrize("who", ["a stranger", "a node"])
def test_a_message_that_never_ends_is_cut(
    context: Context,
    gate: ZapAuthenticator,
    listen: Callable[..., Listener],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    who: str,
) -> None:
    """Its sender has the key. Beside it a node's large messages arrive."""
    monkeypatch.setattr(sockets, "MAX_MESSAGE_BYTES", 64 * MIB)
    listener = listen(LARGEST)
    listener.admit(["t"])
    with (
        peak_growth() as growth,
        sender(context, listener.endpoint, "t/0") as node,
        held_back(listener.endpoint, FRAMES * MIB // 4) as endpoint,
        sender(context, endpoint, "t/1" if who == "a node" else "who") as endless,
    ):
        endless.send(b"who has sent something before")
        taken(listener, 1)
        # One without a place may be cut for what both hold.
        node.send(b"first of all")
        taken(listener, 1)
        endless.send_multipart([FRAME] * ENDLESS_FRAMES, copy=False)
        for _ in range(20):
            node.send_multipart([b"no header", bytes(LARGEST - 100)], copy=False)
            taken(listener, 1)
        wait_until(lambda: gate.refusals.count, "it is cut")
        assert not listener.socket.poll(0)
    assert gate.refusals.count == 1
    assert "shut down a connection from 127.0.0.1:" in caplog.text
    assert "bytes without finishing a message" in caplog.text
    assert growth[0] < ENDLESS_FRAMES * MIB / 2
    assert listener.refusals.count == 22, "the others were taken, and refused for their form alone"


def test_within_the_bound_it_arrives(
    context: Context, gate: ZapAuthenticator, listen: Callable[..., Listener]
) -> None:
    """The control: nothing else keeps such a message away."""
    listener = listen()
    with peak_growth() as growth, sender(context, listener.endpoint, "who") as endless:
        endless.send_multipart([FRAME] * FRAMES, copy=False)
        assert listener.socket.poll(60_000)
        assert len(listener.socket.recv_multipart(copy=False)) == FRAMES + 1
    assert gate.refusals.count == 0
    assert growth[0] > FRAMES * MIB / 2


def test_a_frame_larger_than_any_message_is_refused_at_once(listen: Callable[..., Listener]) -> None:
    """By ZeroMQ, also before it knows who sends it."""
    listener = listen(LARGEST)
    with without_key(listener.endpoint) as large, without_key(listener.endpoint) as other:
        large.sendall(LONG_COMMAND + (LARGEST + 1).to_bytes(8, "big"))
        other.sendall(LONG_COMMAND + LARGEST.to_bytes(8, "big"))
        wait_until(lambda: is_shut_down(large), "it is refused")
        assert not is_shut_down(other), "the control"


def test_without_the_key_connections_hold_little_together(listen: Callable[..., Listener]) -> None:
    """Each within the bound of a frame; those that hold most are shut down until all are within theirs."""
    listener = listen(LARGEST)
    held = [3 * MIB, 2 * MIB, MIB, 2 * MIB, 3 * MIB]  # 8 MiB are allowed.
    with ExitStack() as stack:
        connections = [stack.enter_context(without_key(listener.endpoint)) for _ in held]
        for connection, size in zip(connections, held, strict=True):
            connection.sendall(LONG_COMMAND + LARGEST.to_bytes(8, "big"))
            send_all(connection, size)

        def left() -> int:
            return sum(size for one, size in zip(connections, held, strict=True) if not is_shut_down(one))

        # In steps: what was sent comes in while some are shut down already.
        wait_until(lambda: left() <= 8 * MIB, "the others are within the bound")
        assert not is_shut_down(connections[2]), "the one that holds least"


def send_all(connection: socket.socket, size: int) -> None:
    """Send so many bytes, unless the connection is shut down meanwhile."""
    try:
        connection.sendall(bytes(size))
    except ConnectionError:
        return


@pytest.mark.parametrize(("files", "most"), [(1 << 16, 512), (1024, 256), (256, 64)])
def test_strangers_leave_most_of_the_files_to_the_process(
    files: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    arrivals = Arrivals(LARGEST, LARGEST)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        refused = []
        for _ in range(most + 2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            accepted = stack.enter_context(server.accept()[0])
            refused.append(arrivals.accept(accepted.fileno(), port))
    assert [one is not None for one in refused] == [False] * most + [True] * 2


def test_strangers_are_too_many_without_a_key_as_well(
    context: Context, use: Callable[[JobKey | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "MOST_UNADMITTED", 3)
    use(None)
    with ExitStack() as stack:
        gate = stack.enter_context(gated(context, None))
        listener = stack.enter_context(closing(Listener(context, "tcp://127.0.0.1:0", LARGEST)))
        listener.admit(["t"])
        node = stack.enter_context(sender(context, listener.endpoint, "t/0"))
        node.send(b"first of all")
        taken(listener, 1)
        host, _, port = listener.endpoint.removeprefix("tcp://").rpartition(":")
        unadmitted = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(5)]
        wait_until(lambda: sum(map(is_shut_down, unadmitted)) == 2, "two are shut down")
        wait_until(lambda: gate.refusals.count == 2, "both are counted, which is done afterwards")
        node.send(b"is not one of them")
        taken(listener, 1)


def test_of_too_many_strangers_the_oldest_is_shut_down(
    context: Context, gate: ZapAuthenticator, listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "MOST_UNADMITTED", 3)
    listener = listen(LARGEST)
    listener.admit(["t"])
    with ExitStack() as stack:
        node = stack.enter_context(sender(context, listener.endpoint, "t/0"))
        node.send(b"first of all")
        taken(listener, 1)
        unadmitted = []

        def enough(refused: int) -> bool:
            return gate.refusals.count >= refused

        for number in range(5):
            unadmitted.append(stack.enter_context(without_key(listener.endpoint)))
            wait_until(partial(enough, number - 2), "the oldest goes")
        wait_until(lambda: is_shut_down(unadmitted[0]) and is_shut_down(unadmitted[1]), "two are shut down")
        assert not any(map(is_shut_down, unadmitted[2:]))
        assert gate.refusals.count == 2
        node.send(b"is not one of them")
        taken(listener, 1)


class Accepting:
    """A TCP socket that accepts, without ZeroMQ."""

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._server.getsockname()[1]
        self._stack = stack

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new connection, the accepted one first."""
        client = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        return self._stack.enter_context(self._server.accept()[0]), client


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    with ExitStack() as stack:
        yield Accepting(stack)


def held_by(*connections: tuple[socket.socket, socket.socket], sizes: Sequence[int]) -> None:
    """Have the accepted ends receive so many bytes, which are read from them as ZeroMQ would."""
    for (accepted, client), size in zip(connections, sizes, strict=True):
        writer = threading.Thread(target=client.sendall, args=(bytes(size),))
        writer.start()
        left = size
        while left:
            left -= len(accepted.recv(left))
        writer.join(60.0)


def message_on(accepted: socket.socket) -> Any:
    """The last frame of a message that came over a connection, which says over which."""
    return SimpleNamespace(get=lambda _: accepted.fileno())


def test_a_descriptor_that_is_used_again_is_not_shut_down(accepting: Accepting, tmp_path: Path) -> None:
    bounds = Arrivals(MIB, of_place=MIB)
    accepted, client = accepting.pair()
    held_by((accepted, client), sizes=[9 * MIB])
    assert bounds.accept(accepted.fileno(), accepting.port + 1) is None
    assert bounds.count() == (0, 0), "not one that this socket accepted"
    bounds.accept(accepted.fileno(), accepting.port)
    assert bounds.count() == (1, 1)
    other, other_client = accepting.pair()
    held_by((other, other_client), sizes=[9 * MIB])
    descriptor = accepted.fileno()
    os.dup2(other.fileno(), descriptor)
    assert bounds.shut_down_excessive(everyone=True) == []
    assert bounds.count() == (0, 0)
    other_client.sendall(b"still there")
    assert other.recv(100) == b"still there"
    first, second = socket.socketpair()
    with first, second:
        os.dup2(first.fileno(), descriptor)
        assert bounds.accept(descriptor, accepting.port) is None
        assert bounds.count() == (0, 0), "a socket without a port"
    descriptor = accepting.pair()[0].fileno()
    bounds.accept(descriptor, accepting.port)
    with open(tmp_path / "file", "w", encoding="ascii") as file:
        os.dup2(file.fileno(), descriptor)
        assert bounds.count() == (1, 1)
        assert bounds.shut_down_excessive(everyone=True) == []
        assert bounds.accept(descriptor, accepting.port) is None


def test_who_has_a_place_is_looked_at_with_everyone_and_may_hold_more(accepting: Accepting) -> None:
    bounds = Arrivals(MIB, of_place=12 * MIB)
    bounds.is_watched = True
    connections = [accepting.pair() for _ in range(3)]
    for accepted, _ in connections:
        bounds.accept(accepted.fileno(), accepting.port)
    for accepted, _ in connections[:2]:
        bounds.take([message_on(accepted)], [], has_place=True)
    held_by(*connections, sizes=[11 * MIB, 13 * MIB, MIB])
    assert bounds.count() == (3, 1)
    assert bounds.shut_down_excessive(everyone=False) == []
    (excess,) = bounds.shut_down_excessive(everyone=True)
    assert excess.peer == f"127.0.0.1:{connections[1][1].getsockname()[1]}"
    assert connections[1][1].recv(1) == b""
    assert bounds.count() == (2, 1)


def test_what_was_taken_is_not_held(accepting: Accepting) -> None:
    """Also if more was taken than came, which can only be of a connection before."""
    bounds = Arrivals(MIB, of_place=MIB)
    bounds.is_watched = True
    one = accepting.pair()
    bounds.accept(one[0].fileno(), accepting.port)
    held_by(one, sizes=[9 * MIB])
    bounds.take([message_on(one[0])], [20 * MIB], has_place=False)
    assert bounds.shut_down_excessive(everyone=True) == []
    held_by(one, sizes=[3 * MIB])
    assert bounds.shut_down_excessive(everyone=True) == []
    held_by(one, sizes=[2 * MIB])
    (excess,) = bounds.shut_down_excessive(everyone=True)
    assert excess.why == f"it sent {5 * MIB} bytes without finishing a message"
