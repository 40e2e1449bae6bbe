"""The memory that a trainer shares with its worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from shadowsync.nodes.replica.buffer import PrivateMemory, ReplicaMemory, SharedMemory

STEPS = 200

# Both sides step on the whole tensor, as Hogwild workers do; each has a gradient on its own half only.
STEP = """
import sys
import torch
from shadowsync.nodes.replica.buffer import SharedMemory

elements, steps = int(sys.argv[2]), int(sys.argv[3])
memory = SharedMemory.attach(int(sys.argv[1]))
shared, counters = memory.place(torch.full((elements,), 7.0)), memory.counters(2)
gradient = torch.zeros(elements)
gradient[: elements // 2] = 1.0
counters[1] = 1
while not counters[0]:
    pass
for _ in range(steps):
    shared.add_(gradient)
counters[1] = 2
"""


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """Fresh memory; its descriptor is closed with the test."""
    made = SharedMemory.create()
    yield made
    made.close()


def test_the_other_side_gets_the_same_things_by_asking_in_the_same_order(memory: SharedMemory) -> None:
    first, second = memory.place(torch.arange(5.0)), memory.place(torch.tensor(3.0))
    counters = memory.counters(3)
    other = SharedMemory.attach(memory.descriptor)
    again, scalar = other.place(torch.zeros(5)), other.place(torch.tensor(0.0))
    counted = other.counters(3)
    assert torch.equal(again, torch.arange(5.0))
    assert scalar.shape == ()
    assert float(scalar) == 3.0
    again[2], counted[1] = 9.0, 4
    assert float(first[2]) == 9.0
    assert list(counters) == [0, 4, 0]
    second.add_(1.0)
    assert float(scalar) == 4.0


def test_the_other_side_gets_no_more_than_there_is(memory: SharedMemory) -> None:
    memory.place(torch.zeros(5))
    other = SharedMemory.attach(memory.descriptor)
    other.place(torch.zeros(5))
    with pytest.raises(ValueError, match="length"):
        other.place(torch.zeros(5))


def test_memory_stays_when_the_descriptor_is_closed() -> None:
    memory = SharedMemory.create()
    placed = memory.place(torch.ones(2000))
    memory.close()
    placed.add_(1.0)
    assert float(placed.sum()) == 4000.0


def test_scratch_takes_no_memory_until_it_is_written(memory: SharedMemory) -> None:
    scratch = memory.scratch(1 << 22)
    assert os.fstat(memory.descriptor).st_size >= 4 << 22
    assert os.fstat(memory.descriptor).st_blocks == 0
    scratch.fill_(1.0)
    assert os.fstat(memory.descriptor).st_blocks * 512 >= 4 << 22


def test_private_memory_leaves_things_where_they_are() -> None:
    tensor = torch.ones(3)
    assert PrivateMemory().place(tensor) is tensor
    assert list(PrivateMemory().counters(2)) == [0, 0]


def halves_after_both_stepped(memory: ReplicaMemory, descriptor: int) -> tuple[float, float]:
    """The mean of each half after this process and another have made STEPS steps at the same time."""
    elements = 1 << 16
    shared, counters = memory.place(torch.zeros(elements)), memory.counters(2)
    gradient = torch.zeros(elements)
    gradient[elements // 2 :] = 1.0
    command = [sys.executable, "-c", STEP, str(descriptor), str(elements), str(STEPS)]
    with subprocess.Popen(command, pass_fds=(descriptor,)) as other:
        counters[0] = 1
        for _ in range(STEPS):
            shared.add_(gradient)
        assert other.wait(60) == 0
    return float(shared[: elements // 2].mean()), float(shared[elements // 2 :].mean())


def test_steps_of_two_processes_at_once_both_arrive(memory: SharedMemory) -> None:
    """But for the few that race, element by element."""
    theirs, own = halves_after_both_stepped(memory, memory.descriptor)
    assert 0.5 * STEPS < theirs <= STEPS
    assert 0.5 * STEPS < own <= STEPS


def test_without_shared_memory_only_one_arrives(memory: SharedMemory) -> None:
    memory.place(torch.zeros(1 << 16))
    memory.counters(2)[0] = 1
    theirs, own = halves_after_both_stepped(PrivateMemory(), memory.descriptor)
    assert (theirs, own) == (0.0, STEPS)
