"""What a worker lends of its shared memory, and when it lends it again."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.nodes.embedding.shared_memory import PAGE_FLOATS, Lease, SharedMemoryClient
from shadowsync.nodes.replica.cuda import CudaDevice
from shadowsync.pipeline.wire.messages import Attach, Attached
from shadowsync.pipeline.wire.rpc.retransmission import ATTACH
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.fake_streams import FakeStreams
from shadowsync.tests.support.leaks import memory_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory without a name")
BLOCKS = 4


@pytest.fixture
def shared() -> Iterator[SharedMemoryClient]:
    made = SharedMemoryClient("embedding-0", BLOCKS)
    yield made
    made.close()


def attach(shared: SharedMemoryClient, floats: int = 10, now: float = 0.0) -> Attach:
    """Has so many floats offered, and taken by the node."""
    shared.take(floats)
    offered = present(shared.offer(now))
    shared.receive_reply(Attached(offered.segment, shared=True, why=""))
    return offered


def test_nothing_is_lent_before_the_node_has_it(shared: SharedMemoryClient) -> None:
    assert shared.offer(0.0) is None
    assert shared.take(10) is None
    offered = present(shared.offer(1.0))
    assert (offered.segment, offered.pid) == (1, os.getpid())
    assert shared.take(10) is None
    # Only once overdue it is offered again, and it is the same.
    assert shared.offer(0.9 + ATTACH.interval_seconds) is None
    assert shared.offer(1.5 + ATTACH.interval_seconds) is offered
    shared.receive_reply(Attached(2, shared=True, why=""))
    assert shared.take(10) is None
    shared.receive_reply(Attached(1, shared=True, why=""))
    lent = present(shared.take(10))
    assert lent.values.shape == (10,)
    assert shared.offer(100.0) is None


def test_a_block_is_lent_again_when_nothing_refers_to_it(shared: SharedMemoryClient) -> None:
    attach(shared)
    first = shared.take(10)
    second = shared.take(8)
    assert first is not None
    assert second is not None
    assert first.offset != second.offset
    place = first.offset
    tensor = torch.from_numpy(first.values[2:]).view(2, 4).detach()
    del first
    third = present(shared.take(10))
    assert third.offset not in (place, second.offset)
    # The control: with the tensor the last thing on its memory is gone.
    del tensor
    again = present(shared.take(10))
    assert again.offset == place
    last = shared.take(1)
    assert last is not None
    assert shared.take(1) is None


class LendsBusyMemory(SharedMemoryClient):
    """The control: a block is there for the next one as soon as it is lent."""

    def take(self, floats: int) -> Lease | None:
        if (lease := super().take(floats)) is not None:
            self._returned.append((lease.segment, lease.offset))
        return lease


Step = tuple[str, int]
DEEDS = st.sampled_from(["lend", "lend", "end", "retire"])
STEPS = st.lists(st.tuples(DEEDS, st.integers(0, 9)), max_size=40)


def follow(shared: SharedMemoryClient, steps: list[Step]) -> None:
    """Lends and ends leases as told, each kept as a step keeps it; checks what lies in the memory."""
    attach(shared)
    held: list[tuple[torch.Tensor, Lease, float]] = []
    for number, (what, which) in enumerate(steps, start=1):
        if what == "lend" and (lease := shared.take(10)) is not None:
            lease.values[:] = number
            held.append((torch.from_numpy(lease.values[which:]).detach(), lease, float(number)))
            del lease
        elif what == "end" and held:
            held.pop(which % len(held))
        elif what == "retire" and held:
            shared.retire(held[which % len(held)][1])
        assert [float(tensor[0]) for tensor, _, _ in held] == [theirs for _, _, theirs in held]
    shared.close()


@given(STEPS)
def test_what_is_lent_is_lent_to_nobody_else(steps: list[Step]) -> None:
    follow(SharedMemoryClient("e", BLOCKS), steps)


def test_the_control_is_found() -> None:
    steps = [("lend", 0), ("lend", 0)]
    follow(SharedMemoryClient("e", BLOCKS), steps)
    with pytest.raises(AssertionError):
        follow(LendsBusyMemory("e", BLOCKS), steps)


def test_a_lease_may_end_on_another_thread(shared: SharedMemoryClient) -> None:
    attach(shared)
    for _ in range(3 * BLOCKS):
        kept = [shared.take(10)]
        assert kept != [None]
        other = threading.Thread(target=kept.clear)
        other.start()
        other.join(60.0)


def test_what_was_retired_is_never_lent_again(shared: SharedMemoryClient) -> None:
    attach(shared)
    lent = present(shared.take(10))
    place = lent.offset
    shared.retire(lent)
    del lent
    kept = [shared.take(10) for _ in range(BLOCKS)]
    assert [one is not None for one in kept] == [True] * (BLOCKS - 1) + [False]
    assert place not in [one.offset for one in kept if one is not None]


def test_half_of_it_lost_another_one_takes_its_place(shared: SharedMemoryClient) -> None:
    first = attach(shared)
    old = present(shared.take(10))
    shared.retire(old)
    assert shared.offer(5.0) is None
    for _ in range(BLOCKS // 2 - 1):
        assert shared.offer(5.0) is None
        lent = present(shared.take(10))
        shared.retire(lent)
    second = present(shared.offer(5.0))
    assert (second.segment, second.token != first.token) == (2, True)
    assert shared.take(10) is None
    # One of the old segment changes nothing of the new one.
    shared.receive_reply(Attached(2, shared=True, why=""))
    shared.retire(old)
    kept = [shared.take(10) for _ in range(BLOCKS)]
    assert None not in kept


def test_a_larger_batch_has_a_larger_segment(shared: SharedMemoryClient) -> None:
    first = attach(shared, PAGE_FLOATS)
    # What is a little larger fits, what is much larger does not.
    assert shared.take(PAGE_FLOATS + 10) is not None
    assert shared.offer(1.0) is None
    held = present(shared.take(10))
    held.values[:] = 3
    assert shared.take(9 * PAGE_FLOATS) is None
    second = present(shared.offer(1.0))
    assert second.size_bytes > first.size_bytes
    shared.receive_reply(Attached(2, shared=True, why=""))
    large = present(shared.take(9 * PAGE_FLOATS))
    large.values[:] = 4
    np.testing.assert_array_equal(held.values, np.full(10, 3, np.float32))


def test_a_node_that_cannot_have_it_is_asked_no_more(
    shared: SharedMemoryClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    before = memory_descriptors()
    shared.take(10)
    assert shared.offer(0.0) is not None
    shared.receive_reply(Attached(1, shared=False, why="it is on another machine"))
    assert shared.refused
    ours = [record.levelname for record in caplog.records if record.name.startswith("shadowsync")]
    assert ours == ["DEBUG"]
    assert "no memory is shared with embedding-0: it is on another machine" in caplog.text
    assert shared.take(10) is None
    assert shared.offer(100.0) is None
    assert memory_descriptors() == before


def test_no_such_memory_is_no_error(shared: SharedMemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError("out of memory")

    monkeypatch.setattr(os, "memfd_create", none)
    shared.take(10)
    assert shared.offer(0.0) is None
    assert shared.refused


def test_descriptors_do_not_pile_up(shared: SharedMemoryClient) -> None:
    attach(shared)
    before = memory_descriptors()
    for round_ in range(2, 12):
        for _ in range(BLOCKS // 2):
            lent = present(shared.take(10))
            shared.retire(lent)
        present(shared.offer(0.0))
        shared.receive_reply(Attached(round_, shared=True, why=""))
    del lent
    assert memory_descriptors() == before


def test_memory_is_locked_until_nothing_of_it_is_lent_and_mapped_until_it_is_unlocked() -> None:
    streams = FakeStreams()
    device = CudaDevice(streams)
    shared = SharedMemoryClient("e", BLOCKS, device.page_lock)
    attach(shared)
    lease = present(shared.take(10))
    lease.values[:] = 7.0
    tensor = torch.from_numpy(lease.values[2:])
    assert streams.is_locked(tensor)
    assert not streams.is_locked(torch.zeros(3))
    shared.close()
    del lease
    assert len(streams.locked) == 1, "the tensor is of this memory"
    del tensor
    gc.collect()
    assert not streams.locked
    assert streams.last_unlocked is not None
    assert streams.last_unlocked[:10].tolist() == [7.0] * 10
