"""Sockets that only the key of the job opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import zmq
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.curve import KeyGate, insecurity, is_loopback, require_key
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.pipeline.wire.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey
from shadowsync.pipeline.wire.messages import Pushed
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.processes import wait_until

Context = zmq.Context[zmq.Socket[bytes]]
# For a message that is not to come; a handshake takes a few milliseconds.
LONG_ENOUGH_MILLISECONDS = 500
MESSAGE = Pushed(1, repeated=False)


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[JobKey | None], None]:
    """Sets the key of what is made from now on."""

    def set_key(key: JobKey | None) -> None:
        if key is None:
            monkeypatch.delenv(KEY_VARIABLE, raising=False)
            return
        path = tmp_path / f"{key.server.public.hex()}.key"
        if not path.exists():
            key.write(path)
        monkeypatch.setenv(KEY_VARIABLE, str(path))

    return set_key


@contextmanager
def gated(context: Context, key: JobKey) -> Iterator[KeyGate]:
    """A gate on a loop of its own."""
    loop = asyncio.new_event_loop()
    made: list[KeyGate] = []

    async def serve() -> None:
        made.append(KeyGate(context, key))
        await made[0].serve()

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


def test_with_the_same_key_messages_come(context: Context, use: Callable[[JobKey | None], None]) -> None:
    key = JobKey.generate()
    use(key)
    with gated(context, key):
        listener = Listener(context, "tcp://127.0.0.1:0")
        connection = Connection(context, listener.endpoint, "t/0")
        connection.send(MESSAGE)
        assert listener.socket.poll(60_000)
        assert listener.receive() == (b"t/0", MESSAGE)
        listener.send(b"t/0", MESSAGE)
        assert connection.socket.poll(60_000)
        assert connection.receive() == MESSAGE
        for one in (connection, listener):
            one.close()


@pytest.mark.parametrize(
    ("listens", "connects"), [("a", "b"), ("a", None), (None, "a")], ids=["another", "none", "only its own"]
)
def test_without_it_nothing_comes(
    context: Context,
    use: Callable[[JobKey | None], None],
    listens: str | None,
    connects: str | None,
) -> None:
    keys = {"a": JobKey.generate(), "b": JobKey.generate()}
    use(keys[listens] if listens else None)
    listener = Listener(context, "tcp://127.0.0.1:0")
    use(keys[connects] if connects else None)
    connection = Connection(context, listener.endpoint, "t/0")
    connection.socket.setsockopt(zmq.LINGER, 0)
    connection.send(MESSAGE)
    assert not listener.socket.poll(LONG_ENOUGH_MILLISECONDS)
    for one in (connection, listener):
        one.close()


def test_who_knows_the_public_key_alone_is_refused_and_counted(
    context: Context, use: Callable[[JobKey | None], None]
) -> None:
    """The pair that a connection shows is admitted or not by the gate, before any message is held."""
    key = JobKey.generate()
    use(key)
    with gated(context, key) as gate:
        listener = Listener(context, "tcp://127.0.0.1:0")
        thief = context.socket(zmq.DEALER)
        thief.linger = 0
        public, secret = zmq.curve_keypair()
        thief.curve_serverkey, thief.curve_publickey, thief.curve_secretkey = (
            key.server.public,
            public,
            secret,
        )
        thief.connect(listener.endpoint)
        thief.send(b"let me in")
        wait_until(lambda: gate.refusals.count > 0, "the gate refuses it")
        assert not listener.socket.poll(0)
        thief.close()
        listener.close()


def test_ipc_needs_no_key(context: Context, use: Callable[[JobKey | None], None]) -> None:
    use(JobKey.generate())
    listener = Listener(context, local_address(uuid4().hex))
    use(None)
    connection = Connection(context, listener.endpoint, "t/0")
    connection.send(MESSAGE)
    assert listener.socket.poll(60_000)
    for one in (connection, listener):
        one.close()


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
    use: Callable[[JobKey | None], None],
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    loopback: bool,
) -> None:
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    use(None)
    assert is_loopback(address) is loopback
    if loopback:
        require_key(address)
    else:
        with pytest.raises(JobFileError, match="there is no key") as raised:
            require_key(address)
        assert "--key FILE" in raised.value.remedy
    assert bool(insecurity(address)) is not loopback
    use(JobKey.generate())
    require_key(address)
    assert insecurity(address) == []
    use(None)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    require_key(address)
    require_key("ipc://@name")
