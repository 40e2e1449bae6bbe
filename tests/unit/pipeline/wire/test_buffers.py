"""Memory is lent again when nothing uses it any more, and not before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.buffers import ROUNDED_TO_ELEMENTS, BufferPool, bytes_of, lend
from shadowsync.pipeline.wire.sockets import send_frames
from shadowsync.tests.support.held_memory import count_allocations, idle_bytes
from shadowsync.tests.support.jobs.processes import wait_until

LARGE = 100_000
"""Elements; ZeroMQ copies what is below 64 KiB."""
PLENTY = 1 << 30


Allocations = Callable[[BufferPool], int]


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Allocations:
    return count_allocations(monkeypatch)


class LendsBusyMemory(BufferPool):
    """The control: what it has lent it holds for idle at once."""

    def take(self, elements: int) -> Float32Array:
        values = super().take(elements)
        memory: Any = values.base
        self._returned.append(memory.obj)
        return values


# All that a user may keep instead of the array itself, and how its first element is read.
KEPT: dict[str, Callable[[Float32Array], Any]] = {
    "array": lambda values: values,
    "view": lambda values: values[:1],
    "view of a view": lambda values: values.reshape(1, -1)[:, :1].view(np.uint8)[0].view(np.float32),
    "tensor": torch.from_numpy,
    "detached part of a tensor": lambda values: torch.from_numpy(values[:1]).view(1).detach(),
    "array of a tensor": lambda values: torch.from_numpy(values)[:1].numpy(),
    "memory": lambda values: values.data,
    "frame": lambda values: np.frombuffer(zmq.Frame(values, copy=False).buffer, np.float32),
}
Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "release"]), st.sampled_from(sorted(KEPT)), st.integers(1, 30_000)
    ),
    max_size=30,
)


def follow(pool: BufferPool, steps: list[Step]) -> None:
    """Takes and releases as told, and checks that everybody's numbers stay his."""
    held: list[tuple[Any, float]] = []
    for number, (what, kind, size) in enumerate(steps, start=1):
        if what == "take":
            values = pool.take(size)
            assert values.shape == (size,)
            values.fill(number)
            held.append((KEPT[kind](values), float(number)))
            del values
        elif held:
            held.pop(size % len(held))
        assert [float(kept[0]) for kept, _ in held] == [theirs for _, theirs in held]


@given(STEPS)
def test_what_is_in_use_is_never_lent(steps: list[Step]) -> None:
    follow(BufferPool(PLENTY), steps)


@pytest.mark.parametrize("kind", sorted(KEPT))
def test_the_control_is_found(kind: str) -> None:
    steps: list[Step] = [("take", kind, 10), ("take", kind, 10)]
    follow(BufferPool(PLENTY), steps)
    with pytest.raises(AssertionError):
        follow(LendsBusyMemory(PLENTY), steps)


@pytest.mark.parametrize("kind", sorted(KEPT))
def test_what_nothing_uses_any_more_is_lent_again(allocations: Allocations, kind: str) -> None:
    pool = BufferPool(PLENTY)
    for _ in range(20):
        kept = KEPT[kind](pool.take(10))
        assert (idle_bytes(pool), allocations(pool)) == (0, 1)
        del kept
        # Of a frame ZeroMQ lets go on a thread of its own.
        wait_until(lambda: idle_bytes(pool) == bytes_of(10), "it is idle")


def test_many_rounds_of_several_lengths_allocate_nothing_after_the_first(allocations: Allocations) -> None:
    pool = BufferPool(PLENTY)
    lengths = [5, 9 * ROUNDED_TO_ELEMENTS, ROUNDED_TO_ELEMENTS + 1, LARGE]
    before: list[Float32Array] = []
    for number in range(50):
        # As a round does: its result is made while that of the last one is still kept.
        before = [pool.take(length) for length in lengths]
        if number == 1:
            warm = allocations(pool)
    assert len(before) == len(lengths)
    assert allocations(pool) == warm == 2 * len(lengths)


def test_the_shortest_that_is_long_enough_is_lent(allocations: Allocations) -> None:
    pool = BufferPool(PLENTY)
    long, short = pool.take(LARGE), pool.take(10)
    del long, short
    kept = [pool.take(10), pool.take(LARGE)]
    assert allocations(pool) == 2
    assert [len(one) for one in kept] == [10, LARGE]


def test_an_array_is_as_long_as_asked(allocations: Allocations) -> None:
    pool = BufferPool(PLENTY)
    for elements in (0, 1, ROUNDED_TO_ELEMENTS, 17):
        values = pool.take(elements)
        assert values.shape == (elements,)
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
        assert values.flags.writeable
        del values
    assert allocations(pool) == 1


def test_idle_memory_has_a_limit_in_bytes(allocations: Allocations) -> None:
    pool = BufferPool(bytes_of(LARGE, arrays=2))
    taken = [pool.take(LARGE) for _ in range(5)]
    too_large = pool.take(3 * LARGE)
    assert allocations(pool) == 6
    # Nobody has to come again for what is more than would ever be kept.
    del too_large
    assert idle_bytes(pool) == 0
    taken.clear()
    pool.take(1)
    assert idle_bytes(pool) == bytes_of(LARGE, arrays=2)


def test_what_was_idle_longest_is_given_up_first(allocations: Allocations) -> None:
    pool = BufferPool(bytes_of(LARGE))
    old, new = pool.take(10), pool.take(LARGE)
    del old, new
    pool.take(LARGE)
    assert allocations(pool) == 2
    pool.take(10)
    assert allocations(pool) == 2


def test_the_last_reference_may_end_on_another_thread(allocations: Allocations) -> None:
    pool = BufferPool(PLENTY)
    kept = [pool.take(10)]
    other = threading.Thread(target=kept.clear)
    other.start()
    other.join(60.0)
    pool.take(10)
    assert allocations(pool) == 1


def test_what_is_part_of_a_cycle_is_lent_again_once_it_is_collected(allocations: Allocations) -> None:
    pool = BufferPool(PLENTY)
    cycle: list[Any] = [pool.take(10)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    pool.take(10)
    assert allocations(pool) == 1


def test_only_a_root_can_be_lent() -> None:
    own = np.zeros(10, np.float32)
    for values in (own, own[:]):
        with pytest.raises(ValueError, match="only the root"):
            lend(values, lambda: None)


@pytest.fixture
def pair(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (one, other):
        socket.setsockopt(zmq.LINGER, 0)
    one.bind("inproc://pool")
    other.connect("inproc://pool")
    yield one, other
    one.close()
    other.close()


def send_two(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]], pool: BufferPool) -> list[float]:
    """Sends twos after ones, each from the pool and then dropped; gives what arrives first."""
    one, other = pair
    for number in (1, 2):
        values = pool.take(LARGE)
        values.fill(number)
        send_frames(one, [values], 0)
        del values
    received = [np.frombuffer(other.recv(copy=False).buffer, np.float32) for _ in range(2)]
    return [float(values.min()) for values in received] + [float(values.max()) for values in received]


def test_what_zeromq_has_still_to_send_is_not_lent(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]], allocations: Allocations
) -> None:
    pool = BufferPool(PLENTY)
    assert send_two(pair, pool) == [1.0, 2.0, 1.0, 2.0]
    # ZeroMQ lets go of frames on a thread of its own.
    wait_until(lambda: idle_bytes(pool) == bytes_of(LARGE, arrays=2), "both frames have been let go of")
    pool.take(LARGE)
    assert allocations(pool) == 2
    assert send_two(pair, LendsBusyMemory(PLENTY)) == [2.0] * 4, "the control"
