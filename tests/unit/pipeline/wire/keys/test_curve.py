"""Sockets that only the key of the job opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from uuid import uuid4

import pytest
import zmq
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.pipeline.wire.keys.curve import (
    ZapAuthenticator,
    close_listening,
    is_loopback,
    require_key,
    socket_warnings,
)
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, JobKey
from shadowsync.pipeline.wire.messages import Pushed
from shadowsync.pipeline.wire.refusals import LOGGED_REFUSALS
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.gate import gated
from shadowsync.tests.support.outside.keyless_client import connect_without_key
from zmq.utils.monitor import parse_monitor_message

Context = zmq.Context[zmq.Socket[bytes]]
# For a message that is not to come; a handshake takes a few milliseconds.
LONG_ENOUGH_MILLISECONDS = 500
MESSAGE = Pushed(1, repeated=False)
# More than the 1,000 at each end that ZeroMQ queues by default.
MANY = 2_500


@contextmanager
def held(gate: ZapAuthenticator) -> Iterator[None]:
    """Keeps the gate's loop from doing anything."""
    go_on, is_held = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait()

    gate._loop.call_soon_threadsafe(hold)
    assert is_held.wait(60.0)
    try:
        yield
    finally:
        go_on.set()


def test_with_the_same_key_messages_come(context: Context, listen: Callable[..., Listener]) -> None:
    listener = listen()
    with closing(Connection(context, listener.endpoint, "t/0")) as connection:
        connection.send(MESSAGE)
        assert listener.socket.poll(60_000)
        assert listener.receive() == (b"t/0", MESSAGE)
        listener.send(b"t/0", MESSAGE)
        assert connection.socket.poll(60_000)
        assert connection.receive() == MESSAGE


@pytest.mark.parametrize(
    ("listens", "connects"), [("a", "b"), ("a", None), (None, "a")], ids=["another", "none", "only its own"]
)
def test_without_it_nothing_comes(
    context: Context, use: Callable[[JobKey | None], None], listens: str | None, connects: str | None
) -> None:
    keys = {"a": JobKey.generate(), "b": JobKey.generate()}
    use(keys[listens] if listens else None)
    with closing(Listener(context, "tcp://127.0.0.1:0")) as listener:
        use(keys[connects] if connects else None)
        with closing(Connection(context, listener.endpoint, "t/0")) as connection:
            connection.socket.setsockopt(zmq.LINGER, 0)
            connection.send(MESSAGE)
            assert not listener.socket.poll(LONG_ENOUGH_MILLISECONDS)


def test_who_knows_the_public_key_alone_is_refused_and_counted(
    context: Context, key: JobKey, gate: ZapAuthenticator, listen: Callable[..., Listener]
) -> None:
    """The pair that a connection shows is admitted or not by the gate, before any message is held."""
    listener = listen()
    with context.socket(zmq.DEALER) as thief:
        thief.linger = 0
        thief.curve_serverkey = key.server.public
        thief.curve_publickey, thief.curve_secretkey = zmq.curve_keypair()
        thief.connect(listener.endpoint)
        # Once it is refused there is no connection to send on.
        with suppress(zmq.Again):
            thief.send(b"let me in", zmq.NOBLOCK)
        wait_until(lambda: gate.refusals.count > 0, "the gate refuses it")
        assert not listener.socket.poll(0)


@pytest.mark.parametrize(("connects", "why"), [("b", "it has another key"), (None, "it has no key")])
def test_who_has_not_the_key_is_counted_though_the_gate_is_not_asked(
    context: Context,
    use: Callable[[JobKey | None], None],
    caplog: pytest.LogCaptureFixture,
    connects: str | None,
    why: str,
) -> None:
    key = JobKey.generate()
    counted: list[int] = []
    use(key)
    with gated(context, key, refused=lambda: counted.append(1)) as gate, zmq.Context() as theirs:
        listeners = [Listener(context, "tcp://127.0.0.1:0") for _ in range(2)]
        own = Connection(context, listeners[0].endpoint, "t/0")
        strangers = []
        for listener in listeners:
            if connects is None:
                # ZeroMQ's own client may close the connection before the listener has read who it is.
                assert connect_without_key(listener.endpoint) == b""
            else:
                use(JobKey.generate())
                strangers.append(Connection(theirs, listener.endpoint, "t/1"))
        wait_until(lambda: all(one.endpoint in caplog.text for one in listeners), "both are refused")
        assert f"refused a connection to {listeners[1].endpoint}: {why}" in caplog.messages
        for stranger in strangers:
            stranger.socket.close(linger=0)
        # Who has the key is none of them.
        own.send(MESSAGE)
        assert listeners[0].socket.poll(60_000)
        assert listeners[0].receive() == (b"t/0", MESSAGE)
        # Each is counted in one place after the other, and a stranger may have tried again.
        wait_until(lambda: gate.refusals.count == len(counted) >= 2, "all are counted in both places")
        own.close()
        for listener in listeners:
            listener.close()


def test_refused_connections_hold_up_nobody(
    context: Context,
    gate: ZapAuthenticator,
    listen: Callable[..., Listener],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """More than ZeroMQ would queue while the gate's loop is busy; all are counted."""
    listener = listen()
    with held(gate):
        for _ in range(MANY):
            connect_without_key(listener.endpoint)
        # The last one got its answer: ZeroMQ's thread goes on, whatever the gate's loop does.
        assert gate.refusals.count == 0
        assert connect_without_key(listener.endpoint) == b""
    wait_until(lambda: gate.refusals.count == MANY + 1, "all are counted", 60.0)
    with closing(Connection(context, listener.endpoint, "t/0")) as connection:
        connection.send(MESSAGE)
        assert listener.socket.poll(60_000)
    assert len(caplog.messages) < LOGGED_REFUSALS + 12


def test_a_socket_that_is_closed_tells_of_no_more_handshakes(context: Context) -> None:
    """Who closes it may close the gate next; ZeroMQ's thread would wait for who takes the event."""
    socket = context.socket(zmq.ROUTER)
    socket.monitor("inproc://events", int(zmq.EVENT_ALL))
    with context.socket(zmq.PAIR) as events:
        events.connect("inproc://events")
        socket.bind("tcp://127.0.0.1:0")
        close_listening(socket)
        close_listening(socket)
        reported: list[int] = []
        while zmq.EVENT_MONITOR_STOPPED not in reported:
            assert events.poll(60_000)
            reported.append(parse_monitor_message(events.recv_multipart())["event"])
        assert zmq.EVENT_LISTENING in reported
        assert zmq.EVENT_CLOSED not in reported


def test_a_gate_is_no_task_and_takes_failed_handshakes_until_it_is_closed(
    context: Context, use: Callable[[JobKey | None], None]
) -> None:
    """A node's tasks end before its sockets: until those are closed, ZeroMQ's thread tells of failures."""
    key = JobKey.generate()
    use(key)

    async def end_and_knock() -> None:
        counted = asyncio.Event()
        gate = ZapAuthenticator(context, key, refused=counted.set)
        listener = Listener(context, "tcp://127.0.0.1:0")
        try:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            # Or the knock would hold ZeroMQ's thread, and this test, for ever.
            assert not any(one.closed for one in gate._events)
            assert await asyncio.to_thread(connect_without_key, listener.endpoint) == b""
            await asyncio.wait_for(counted.wait(), 60.0)
        finally:
            listener.close()
            gate.close()

    asyncio.run(end_and_knock())


def test_ipc_needs_no_key(context: Context, use: Callable[[JobKey | None], None]) -> None:
    use(JobKey.generate())
    with closing(Listener(context, local_address(uuid4().hex))) as listener:
        use(None)
        with closing(Connection(context, listener.endpoint, "t/0")) as connection:
            connection.send(MESSAGE)
            assert listener.socket.poll(60_000)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("tcp://127.0.0.1:*", True),
        ("tcp://127.1.2.3:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://localhost:5555", True),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://*:5555", False),
        ("tcp://10.0.0.1:5555", False),
        ("tcp://a-host:5555", False),
    ],
)
def test_off_loopback_a_key_is_needed(
    use: Callable[[JobKey | None], None], monkeypatch: pytest.MonkeyPatch, address: str, loopback: bool
) -> None:
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    use(None)
    assert is_loopback(address) is loopback
    if loopback:
        require_key(address)
    else:
        with pytest.raises(JobFileError, match="without a key") as raised:
            require_key(address)
        assert "--key FILE" in raised.value.remedy
    assert bool(socket_warnings(address)) is not loopback
    use(JobKey.generate())
    require_key(address)
    assert socket_warnings(address) == []
    use(None)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    require_key(address)
    require_key("ipc://@name")
