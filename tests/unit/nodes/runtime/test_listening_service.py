"""The loop that all answering roles share: messages, commands, refusals, its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq
from shadowsync.nodes.runtime import threads as listening_service
from shadowsync.nodes.runtime.threads import ListeningService
from shadowsync.pipeline.wire.messages import Credit, Failure, Lookup, Pushed
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.jobs.processes import wait_until

Context = zmq.Context[zmq.Socket[bytes]]


class Echo(ListeningService):
    """Answers lookups of one row, and notes what its thread does."""

    def __init__(self, listener: Listener, failed: Callable[[BaseException], None]) -> None:
        super().__init__("echo", listener, failed)
        self.done: list[str] = []

    def handle(self, identity: bytes, message: Message) -> None:
        if not isinstance(message, Lookup):
            raise ValueError(f"no {message.KIND}")
        if len(message.rows) > 1:
            raise ZeroDivisionError("a mistake of ours")
        self.done.append(f"lookup {message.request}")
        self.listener.send(identity, Pushed(message.request, repeated=False))

    def served(self) -> None:
        self.done.append("served")


@pytest.fixture
def found() -> list[BaseException]:
    return []


@pytest.fixture
def echo(context: Context, found: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> Iterator[Echo]:
    # So long that only a message or a wake ends its sleep within a test.
    monkeypatch.setattr(listening_service, "POLL_MILLISECONDS", 60_000)
    made = Echo(Listener(context, "tcp://127.0.0.1:0"), found.append)
    made.start()
    yield made
    made.stop()
    assert made.join(60.0)
    assert made.listener.socket.closed


@pytest.fixture
def requester(context: Context, echo: Echo) -> Iterator[Connection]:
    connection = Connection(context, echo.listener.endpoint, "t/0")
    yield connection
    connection.close()


def reply(requester: Connection, message: Message) -> Message | None:
    requester.send(message)
    assert requester.socket.poll(60_000), "nothing came"
    return requester.receive()


def lookup(request: int, rows: int = 1) -> Lookup:
    return Lookup(request, np.zeros(rows, np.int32))


def test_messages_are_handled_in_turn_and_counted(echo: Echo, requester: Connection) -> None:
    assert reply(requester, lookup(1)) == Pushed(1, repeated=False)
    wait_until(lambda: "served" in echo.done[echo.done.index("lookup 1") :], "its turn ends")
    assert reply(requester, lookup(2)) == Pushed(2, repeated=False)
    reported = threading.Event()
    echo.call(reported.set)
    assert reported.wait(60.0)
    assert [what for what in echo.done if what != "served"] == ["lookup 1", "lookup 2"]
    counts = echo.metrics()
    bytes_both_ways = (requester.received_bytes, requester.sent_bytes)
    assert (counts["sent_bytes"], counts["received_bytes"]) == bytes_both_ways
    assert counts["handled_messages"] == 2
    assert 0.0 < counts["handled_seconds"] < counts["busy_seconds"]


def test_a_refusal_is_counted_and_answered_and_the_service_goes_on(
    echo: Echo, requester: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    assert reply(requester, Pushed(7, repeated=False)) == Failure(7, "no pushed")
    # A message without a number.
    assert reply(requester, Credit(1, 2, 3)) == Failure(0, "no credit")
    assert reply(requester, lookup(3)) == Pushed(3, repeated=False)
    assert echo.listener.refusals.count == 2
    assert "refused a pushed from b't/0': no pushed" in caplog.text


def test_commands_run_on_its_thread_without_any_message(echo: Echo) -> None:
    where: list[str] = []
    reported = threading.Event()

    def note() -> None:
        where.append(threading.current_thread().name)
        reported.set()

    echo.call(note)
    assert reported.wait(60.0)
    assert where == ["echo"]


def test_a_mistake_of_ours_ends_it_and_is_told(
    echo: Echo, requester: Connection, found: list[BaseException]
) -> None:
    requester.send(lookup(1, rows=2))
    assert echo.join(60.0)
    assert [str(error) for error in found] == ["a mistake of ours"]
    assert echo.listener.socket.closed


def test_a_thread_that_waits_gets_the_result_or_the_error(echo: Echo) -> None:
    assert echo.run_blocking(threading.current_thread).name == "echo"

    def fails() -> None:
        raise TimeoutError("of the work itself")

    with pytest.raises(TimeoutError, match="of the work itself"):
        echo.run_blocking(fails)
