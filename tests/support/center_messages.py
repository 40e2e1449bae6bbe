"""The center's messages with their values as float32, as links without a codec have them."""

from __future__ import annotations

import numpy as np
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.messages import CenterExchange, CenterValues


def exchange_of(request: int, start: int, values: Float32Array) -> CenterExchange:
    """A chunk of a replica, from element `start` on."""
    return CenterExchange(request, start, len(values), 0, values.view(np.uint8))


def answer_of(request: int, start: int, values: Float32Array) -> CenterValues:
    """A chunk of an answer, from element `start` on."""
    return CenterValues(request, start, len(values), False, values.view(np.uint8))


def values_of(answer: CenterExchange | CenterValues) -> Float32Array:
    """The values of either, float32 [elements]."""
    values: Float32Array = answer.payload.view("<f4")
    assert len(values) == answer.elements
    return values
