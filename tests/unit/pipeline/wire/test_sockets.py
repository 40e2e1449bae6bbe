"""The blocking sockets over loopback."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import numpy as np
import pytest
import zmq
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire import sockets
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.pipeline.wire.messages import Failure, Lookup, Pushed, Vectors
from shadowsync.pipeline.wire.refusals import LOGGED_REFUSALS, Refusals
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import (
    SERVED_AT_ONCE,
    Connection,
    Listener,
    configure_socket,
    send_or_drop,
)
from shadowsync.tests.support.outside.other_user import greeting_of
from zmq.utils.monitor import parse_monitor_message

Context = zmq.Context[zmq.Socket[bytes]]
WAIT_SECONDS = 60.0


@pytest.fixture
def listener(context: Context) -> Iterator[Listener]:
    made = Listener(context, "tcp://127.0.0.1:0")
    yield made
    made.close()


@pytest.fixture
def connect(context: Context, listener: Listener) -> Iterator[Callable[[str], Connection]]:
    made: list[Connection] = []

    def one(identity: str) -> Connection:
        made.append(Connection(context, listener.endpoint, identity))
        return made[-1]

    yield one
    for connection in made:
        connection.close()


def arrived(connection: Connection) -> Message:
    assert connection.socket.poll(int(WAIT_SECONDS * 1000)), "nothing came"
    message = connection.receive()
    assert message is not None
    return message


def heard(listener: Listener) -> tuple[bytes, Message]:
    # What is refused may come first, alone, and is no message.
    while (received := listener.receive()) is None:
        assert listener.socket.poll(int(WAIT_SECONDS * 1000)), "nothing came"
    return received


def introduce(listener: Listener, connection: Connection) -> bytes:
    connection.send(Lookup(1, np.zeros(1, np.int32)))
    return heard(listener)[0]


def test_messages_go_both_ways(listener: Listener, connect: Callable[[str], Connection]) -> None:
    connection = connect("t/0")
    assert connection.receive() is None
    assert listener.receive() is None
    connection.send(Lookup(7, np.arange(5, dtype=np.int32)))
    identity, question = heard(listener)
    assert identity == b"t/0"
    assert isinstance(question, Lookup)
    assert question.rows.tolist() == [0, 1, 2, 3, 4]
    values = np.arange(200_000, dtype=np.float32)
    listener.send(identity, Vectors(7, 3, values))
    reply = arrived(connection)
    assert isinstance(reply, Vectors)
    np.testing.assert_array_equal(reply.values, values)
    assert listener.sent_bytes == connection.received_bytes > values.nbytes
    assert connection.sent_bytes == listener.received_bytes > 20


def test_several_peers_are_told_apart(listener: Listener, connect: Callable[[str], Connection]) -> None:
    connections = {f"t/{number}": connect(f"t/{number}") for number in range(3)}
    for number, connection in enumerate(connections.values()):
        connection.send(Pushed(number, repeated=False))
    served: dict[bytes, Message] = {}
    until = time.monotonic() + WAIT_SECONDS
    while len(served) < 3 and time.monotonic() < until:
        listener.socket.poll(100)
        listener.serve(served.__setitem__)
    assert served == {f"t/{number}".encode(): Pushed(number, repeated=False) for number in range(3)}
    for name in reversed(connections):
        listener.send(name.encode(), Failure(0, name))
        assert arrived(connections[name]) == Failure(0, name)


def test_serving_ends_however_much_comes(listener: Listener, connect: Callable[[str], Connection]) -> None:
    connection = connect("t/0")
    for number in range(2 * SERVED_AT_ONCE):
        connection.send(Pushed(number, repeated=False))
    served: list[Message] = []

    def handle(identity: bytes, message: Message) -> None:
        assert identity == b"t/0"
        served.append(message)
        # Each is followed by one more.
        connection.send(Pushed(len(served) + 2 * SERVED_AT_ONCE - 1, repeated=False))

    until = time.monotonic() + WAIT_SECONDS
    while len(served) < 4 * SERVED_AT_ONCE and time.monotonic() < until:
        listener.socket.poll(100)
        before = len(served)
        listener.serve(handle)
        assert len(served) - before <= SERVED_AT_ONCE
    assert served == [Pushed(number, repeated=False) for number in range(len(served))]
    assert len(served) >= 4 * SERVED_AT_ONCE


def test_what_cannot_be_understood_is_counted_logged_and_answered(
    listener: Listener, connect: Callable[[str], Connection], caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect("stranger/1")
    with caplog.at_level(logging.ERROR):
        for wrong in ([b"GET / HTTP/1.1"], [b""], [b"", b"x" * 100]):
            connection.socket.send_multipart(wrong)
        connection.send(Pushed(1, repeated=False))
        # What is refused does not hide what follows it.
        assert heard(listener) == (b"stranger/1", Pushed(1, repeated=False))
    assert listener.refusals.count == 3
    assert caplog.text.count("stranger/1") == 3
    for _ in range(3):
        reply = arrived(connection)
        assert isinstance(reply, Failure)
        assert reply.request == 0
        assert reply.what
    assert connection.receive() is None


def test_only_those_admitted_are_heard(
    listener: Listener, connect: Callable[[str], Connection], caplog: pytest.LogCaptureFixture
) -> None:
    known, alike, stranger = connect("t/0"), connect("tt/0"), connect("other")
    for each in (known, alike, stranger):
        introduce(listener, each)
    before = listener.refusals.count
    assert not before, "at first everybody is heard"
    listener.admit(["t", "u"])
    for each in (alike, stranger):
        each.send(Pushed(1, repeated=False))
        reply = arrived_through(listener, each)
        assert isinstance(reply, Failure)
        assert "not one of this job's trainers" in reply.what
    assert listener.refusals.count == 2
    assert "'other'" in caplog.text
    known.send(Pushed(2, repeated=False))
    assert heard(listener) == (b"t/0", Pushed(2, repeated=False))
    listener.admit([])
    known.send(Pushed(3, repeated=False))
    assert isinstance(arrived_through(listener, known), Failure)


def test_who_is_refused_has_no_more_than_its_turn(
    listener: Listener, connect: Callable[[str], Connection]
) -> None:
    """However many messages a stranger sends, the thread gets to its other work."""
    listener.admit([])
    stranger, sent = connect("stranger"), 4 * SERVED_AT_ONCE
    for number in range(sent):
        stranger.send(Pushed(number, repeated=False))
    served: list[Message] = []
    while listener.refusals.count < sent:
        before = listener.refusals.count
        assert listener.socket.poll(int(WAIT_SECONDS * 1000)), "nothing came"
        listener.serve(lambda _, message: served.append(message))
        assert listener.refusals.count - before <= SERVED_AT_ONCE
    assert not served


def arrived_through(listener: Listener, connection: Connection) -> Message:
    """What the listener answers, which hears nobody."""
    assert listener.socket.poll(int(WAIT_SECONDS * 1000)), "nothing came"
    assert listener.receive() is None
    return arrived(connection)


def test_refusals_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(logging.getLogger("refusing"))
    for number in range(1, 10_001):
        refusals.add("refused %d, 100 %% of it", number)
    lines = caplog.text.splitlines()
    assert refusals.count == 10_000
    assert LOGGED_REFUSALS < len(lines) < LOGGED_REFUSALS + 16
    assert "refused 32, 100 % of it" in lines[LOGGED_REFUSALS - 1]
    assert "refused 8192, 100 % of it (8192 so far" in lines[-1]


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("user", "greeted"), [(0, b"1"), (65534, b"0")])
def test_an_ipc_socket_is_for_its_own_user(context: Context, user: int, greeted: bytes) -> None:
    address = local_address(uuid4().hex)
    listener = Listener(context, address)
    try:
        assert greeting_of(address, user) == greeted
    finally:
        listener.close()


def test_a_connection_counts_what_it_cannot_understand(
    listener: Listener, connect: Callable[[str], Connection]
) -> None:
    connection = connect("t/0")
    identity = introduce(listener, connection)
    listener.socket.send_multipart([identity, b"nonsense"])
    listener.send(identity, Pushed(1, repeated=True))
    assert arrived(connection) == Pushed(1, repeated=True)
    assert connection.refusals.count == 1


def test_a_peer_that_never_was_is_counted_not_raised(listener: Listener) -> None:
    listener.send(b"nobody", Pushed(1, repeated=False))
    assert listener.unreachable_messages == 1
    assert listener.sent_bytes == 0


def test_a_peer_that_left_is_counted_not_raised(
    listener: Listener, connect: Callable[[str], Connection]
) -> None:
    leaving, staying = connect("leaving"), connect("staying")
    identities = [introduce(listener, leaving), introduce(listener, staying)]
    listener.send(identities[0], Pushed(1, repeated=False))
    assert arrived(leaving) == Pushed(1, repeated=False)
    leaving.close()
    until = time.monotonic() + WAIT_SECONDS
    while not listener.unreachable_messages:
        assert time.monotonic() < until, "a peer that left is still written to"
        listener.socket.poll(20)
        listener.send(identities[0], Pushed(2, repeated=False))
    assert listener.unreachable_messages == 1
    # The others are answered as before.
    listener.send(identities[1], Pushed(3, repeated=False))
    assert arrived(staying) == Pushed(3, repeated=False)


def test_a_full_queue_is_counted_not_raised(context: Context) -> None:
    # A port that is taken and never listens; one that has just been closed may still accept.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        connection = Connection(context, f"tcp://127.0.0.1:{silent.getsockname()[1]}", "t/0")
        try:
            for _ in range(10_000):
                connection.send(Pushed(1, repeated=False))
                if connection.unsent_messages:
                    break
            sent = connection.sent_bytes
            assert connection.unsent_messages == 1
            connection.send(Pushed(1, repeated=False))
            assert connection.unsent_messages == 2
            assert connection.sent_bytes == sent > 0
        finally:
            connection.close()


def test_what_nobody_takes_does_not_keep_a_process_alive() -> None:
    context: Context = zmq.Context(io_threads=1)
    connection = Connection(context, "tcp://127.0.0.1:9", "t/0")
    connection.send(Pushed(1, repeated=False))
    connection.close()
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(WAIT_SECONDS)
    assert not ending.is_alive()


@pytest.mark.parametrize("address", ["tcp://203.0.113.1:0", "tcp://", "nonsense"])
def test_an_address_that_is_none_of_ours_is_refused_by_name(context: Context, address: str) -> None:
    with pytest.raises(ClusterError, match=r"cannot listen there .*--bind") as refused:
        Listener(context, address)
    assert str(refused.value).startswith(address)


def test_a_port_in_use_is_refused_by_name(context: Context, listener: Listener) -> None:
    with pytest.raises(ClusterError, match=r"cannot listen there \(Address already in use\)"):
        Listener(context, listener.endpoint)


@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog drops new connections on Linux")
def test_a_host_that_answers_nothing_is_tried_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a host's crash, when the address is nobody's: the system alone would wait for two minutes."""
    monkeypatch.setattr(sockets, "CONNECT_MILLISECONDS", 200)
    with socket.socket() as silent, socket.socket() as first:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        first.connect(silent.getsockname())
        connection = Connection(context, f"tcp://127.0.0.1:{silent.getsockname()[1]}", "a")
        events = connection.socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED)
        try:
            assert events.poll(30_000)
            assert parse_monitor_message(events.recv_multipart())["event"] == zmq.EVENT_CONNECT_RETRIED
        finally:
            connection.socket.disable_monitor()
            events.close()
            connection.close()


def test_what_cannot_be_queued_is_dropped_and_said(context: Context, listener: Listener) -> None:
    assert not send_or_drop(listener.socket, [b"stranger", b"one"])
    dealer = context.socket(zmq.DEALER)
    configure_socket(dealer)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.SNDHWM, 3)
    # A port that is taken and never listens; one that has just been closed may still accept.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        dealer.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        assert [send_or_drop(dealer, [b"x"]) for _ in range(5)] == [True, True, True, False, False]
    dealer.close()
    with pytest.raises(zmq.ZMQError):
        send_or_drop(dealer, [b"x"])
