"""Waking a thread that polls."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import zmq
from shadowsync.pipeline.wire.sockets import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    made = Waker()
    yield made
    made.close()


def poller_of(waker: Waker) -> zmq.Poller:
    poller = zmq.Poller()
    poller.register(waker.fileno(), zmq.POLLIN)
    return poller


def test_it_wakes_until_cleared(waker: Waker) -> None:
    poller = poller_of(waker)
    assert poller.poll(0) == []
    waker.wake()
    assert poller.poll(60_000)
    assert poller.poll(0)
    waker.clear()
    assert poller.poll(0) == []
    waker.wake()
    assert poller.poll(60_000)


def test_one_that_nobody_closed_is_closed_when_it_is_garbage() -> None:
    """Otherwise Python would warn of its two sockets, which is an error here."""
    made = Waker()
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_another_thread_wakes_a_poller_that_waits(waker: Waker) -> None:
    waiting, woken = threading.Event(), threading.Event()

    def wait() -> None:
        poller = poller_of(waker)
        waiting.set()
        if poller.poll(60_000):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(60)
    waker.wake()
    thread.join(60.0)
    assert woken.is_set()


def test_waking_never_blocks_and_is_cleared_at_once(waker: Waker) -> None:
    # More than the pair's buffers hold.
    for _ in range(20_000):
        waker.wake()
    waker.clear()
    assert poller_of(waker).poll(0) == []


def test_a_closed_one_can_be_woken_and_cleared() -> None:
    waker = Waker()
    waker.close()
    waker.wake()
    waker.clear()
    waker.close()
    assert waker.fileno() == -1
