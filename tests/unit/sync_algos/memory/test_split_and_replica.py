"""The peers in memory, which other tests stand on."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.sync_algos.base import Slice
from shadowsync.sync_algos.memory.center import MemoryReplica, split_evenly


@given(st.integers(1, 1000), st.integers(1, 50))
def test_slices_cover_everything_once(numel: int, parts: int) -> None:
    slices = split_evenly(numel, parts)
    assert [element for part in slices for element in range(part.start, part.stop)] == list(range(numel))
    sizes = [len(part) for part in slices]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(slices) == min(numel, parts)


def test_replica_gives_copies() -> None:
    values = torch.arange(6.0)
    replica = MemoryReplica(values)
    part = Slice(1, 4)
    snapshot = replica.snapshot(part)
    replica.add_(part, torch.tensor([1.0, 2.0, 3.0]), -2.0)
    assert replica.values.tolist() == [0.0, -1.0, -2.0, -3.0, 4.0, 5.0]
    assert snapshot.tolist() == [1.0, 2.0, 3.0]
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert replica.numel == 6
