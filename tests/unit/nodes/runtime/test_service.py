"""Threads that stop when told, and whose failures are the node's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import zmq
from shadowsync.nodes.runtime.threads import Service

WAIT_SECONDS = 60.0


class Plain(Service):
    """Runs what it is given."""

    def __init__(self, body: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        super().__init__("plain", failed)
        self._body = body

    def body(self) -> None:
        self._body()


def test_a_failure_is_told_on_the_thread() -> None:
    reported: list[tuple[str, BaseException]] = []

    def fail() -> None:
        raise LookupError("no such row")

    service = Plain(fail, lambda error: reported.append((threading.current_thread().name, error)))
    service.start()
    assert service.join(WAIT_SECONDS)
    ((name, error),) = reported
    assert name == "plain"
    assert isinstance(error, LookupError)


def test_it_is_told_to_stop_and_woken() -> None:
    reported: list[BaseException] = []
    began = threading.Event()

    def wait() -> None:
        poller = zmq.Poller()
        poller.register(service.waker.fileno(), zmq.POLLIN)
        began.set()
        while not service.stopping:
            assert poller.poll(int(WAIT_SECONDS * 1000)), "nobody woke it"
            service.waker.clear()

    service = Plain(wait, reported.append)
    service.start()
    assert began.wait(WAIT_SECONDS)
    service.stop()
    assert service.join(WAIT_SECONDS)
    assert reported == []


def test_joining_says_whether_it_has_ended_and_leaves_no_descriptor() -> None:
    reported: list[BaseException] = []
    end = threading.Event()

    def wait() -> None:
        end.wait(WAIT_SECONDS)

    service = Plain(wait, reported.append)
    service.start()
    assert not service.join(0.01)
    assert service.waker.fileno() >= 0
    end.set()
    assert service.join(WAIT_SECONDS)
    assert service.waker.fileno() == -1
    # Whoever wakes it late does no harm.
    service.stop()
    assert service.join(0.0)


def test_one_that_never_ran_is_ended() -> None:
    reported: list[BaseException] = []
    service = Plain(lambda: None, reported.append)
    service.stop()
    assert service.join(0.0)
    assert service.waker.fileno() == -1


def test_a_thread_that_nobody_joins_leaves_no_descriptor() -> None:
    service = Plain(lambda: None, lambda _: None)
    thread = service._thread
    assert service.waker.fileno() >= 0, "the control"
    service.start()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert service.waker.fileno() == -1
