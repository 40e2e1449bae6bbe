"""The center's messages with their values as float32, as links without a codec have them."""

from __future__ import annotations

import numpy as np
from shadowsync.nodes.sync.center import CenterState
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.center_messages import CenterExchange, CenterRead, CenterValues

START = 100


def exchange_of(request: int, start: int, values: Float32Array) -> CenterExchange:
    """A chunk of a replica, from element `start` on."""
    return CenterExchange(request, start, len(values), 0, values.view(np.uint8))


def reply_of(request: int, start: int, values: Float32Array) -> CenterValues:
    """A chunk of an answer, from element `start` on."""
    return CenterValues(request, start, len(values), False, values.view(np.uint8))


def values_of(reply: CenterExchange | CenterValues) -> Float32Array:
    """The values of either, float32 [elements]."""
    values: Float32Array = reply.payload.view("<f4")
    assert len(values) == reply.elements
    return values


def whole(state: CenterState) -> Float32Array:
    return values_of(state.read(CenterRead(1, state.start, state.stop)))


def chunks(values: Float32Array, size: int) -> list[tuple[int, Float32Array]]:
    """The values of a slice that begins at START, in pieces with their starts."""
    return [(START + at, values[at : at + size]) for at in range(0, len(values), size)]


def floats(length: int, seed: int) -> Float32Array:
    """Some values."""
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)
