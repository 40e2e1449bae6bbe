"""How much memory pools, rounds and sessions hold, counted from their arrays."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import pytest
from shadowsync.nodes.allreduce.context import RoundHistory
from shadowsync.nodes.allreduce.round import ReorderBuffer
from shadowsync.nodes.sync.center import CenterState
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.buffers import BufferPool


def count_allocations(monkeypatch: pytest.MonkeyPatch) -> Callable[[BufferPool], int]:
    """Count the buffers that each pool takes from the system from now on; returns the count's reader."""
    counts: WeakKeyDictionary[BufferPool, int] = WeakKeyDictionary()
    allocate = BufferPool._allocate

    def counted(pool: BufferPool, elements: int) -> Float32Array:
        counts[pool] = counts.get(pool, 0) + 1
        return allocate(pool, elements)

    monkeypatch.setattr(BufferPool, "_allocate", counted)
    return lambda pool: counts.get(pool, 0)


def idle_bytes(pool: BufferPool) -> int:
    """Return the bytes of memory that a pool keeps and nobody uses."""
    return sum(memory.nbytes for memory in (*pool._idle, *pool._returned))


def early_bytes(early: ReorderBuffer) -> int:
    """Return the bytes of the chunks that are held for rounds to come."""
    rounds = early._buffered.values()
    return sum(chunk.payload.nbytes for one in rounds for chunk in one.chunks.values())


def saved_bytes(history: RoundHistory) -> int:
    """Return the bytes of the results that peers may still ask for."""
    return sum(packed.payload.nbytes for saved in history._results for packed in saved.packed.values())


def session_bytes(center: CenterState) -> dict[bytes, int]:
    """Return for each client of a center the bytes of the buffer that its session holds."""
    return {
        client: session._buffer.nbytes
        for client, session in center._sessions.items()
        if session._buffer is not None
    }
