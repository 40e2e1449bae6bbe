"""Buffers are handed out again only when ZeroMQ has let go of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.wire.pool import BufferPool
from shadowsync.pipeline.wire.sockets import send_frames

LARGE = 100_000
"""Elements; ZeroMQ copies what is below 64 KiB."""


@pytest.fixture
def pair(
    context: zmq.Context[zmq.Socket[bytes]],
) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (one, other):
        socket.setsockopt(zmq.LINGER, 0)
    one.bind("inproc://pool")
    other.connect("inproc://pool")
    yield one, other
    one.close()
    other.close()


def test_a_buffer_that_is_still_to_be_sent_is_not_handed_out(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    one, other = pair
    pool = BufferPool()
    first = pool.take(LARGE)
    first.fill(1.0)
    (tracker,) = send_frames(one, [first], 0)
    pool.sent(first, [tracker])
    second = pool.take(LARGE)
    assert not np.shares_memory(first, second)
    second.fill(2.0)
    received = np.frombuffer(other.recv(), np.float32)
    assert (received == 1.0).all()
    tracker.wait(timeout=10)
    third = pool.take(LARGE)
    assert np.shares_memory(first, third)


class Sending:
    """A tracker that is done when the test says so."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.tracker = zmq.MessageTracker(self._event)

    def finish(self) -> None:
        self._event.set()


def test_all_trackers_of_a_buffer_count() -> None:
    pool, one, other = BufferPool(), Sending(), Sending()
    buffer = pool.take(10)
    pool.sent(buffer.reshape(2, 5)[:1], [one.tracker, other.tracker])
    one.finish()
    assert not np.shares_memory(pool.take(10), buffer)
    other.finish()
    assert np.shares_memory(pool.take(10), buffer)


def test_a_buffer_is_handed_out_once_until_it_is_given_back() -> None:
    pool = BufferPool()
    buffer = pool.take(10)
    pool.sent(buffer, [])
    taken = [pool.take(10), pool.take(10)]
    assert np.shares_memory(taken[0], buffer)
    assert not np.shares_memory(taken[0], taken[1])


def test_buffers_are_as_long_as_asked_and_serve_other_lengths() -> None:
    pool = BufferPool()
    for elements in (0, 1, 4096, 17, 4096):
        buffer = pool.take(elements)
        assert buffer.shape == (elements,)
        assert buffer.dtype == np.float32
        assert buffer.flags.c_contiguous
        pool.sent(buffer, [])
    assert pool.allocated_bytes == 4096 * 4
    assert pool.take(4097).shape == (4097,)
    assert pool.allocated_bytes == 3 * 4096 * 4


def test_only_so_many_idle_buffers_are_kept() -> None:
    pool = BufferPool(keep=2)
    for buffer in [pool.take(1) for _ in range(5)]:
        pool.sent(buffer, [])
    pool.take(1)
    assert pool.allocated_bytes == 2 * 4096 * 4


@given(st.lists(st.tuples(st.integers(1, 9000), st.sampled_from(["keep", "send", "finish"])), max_size=30))
def test_no_two_that_are_out_share_memory(steps: list[tuple[int, str]]) -> None:
    pool = BufferPool(keep=3)
    out: list[tuple[np.ndarray[tuple[int], np.dtype[np.float32]], Sending | None]] = []
    for elements, what in steps:
        if what == "finish" and out:
            buffer, sending = out.pop(0)
            if sending is None:
                pool.sent(buffer, [])
            else:
                sending.finish()
            continue
        taken = pool.take(elements)
        assert not any(np.shares_memory(taken, other) for other, _ in out)
        sending = Sending() if what == "send" else None
        if sending is not None:
            pool.sent(taken, [sending.tracker])
        out.append((taken, sending))
