"""Encoding of all-reduce chunks, and the references that both ends keep for it.

With a lossy codec a chunk is sent as the difference from what the receiver decoded of it last time. Both ends
hold that reference, so the encoding error is part of the next difference. A member holds references for its
own values (n elements), for the other members' values in the slice that it reduces (n together), and for the
last result (n). Differences from the last result, with residuals of their own, would need less memory but do
not converge: what is not sent at once stays in the next difference and in the residual, and is sent twice.

Two kinds of rounds are sent as float32: the first round of a generation, and a round of another group than
the last (with reshuffled groups, every round). A round without a result is followed by a new
generation, so no reference is ever rolled back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...pipeline.codecs.feedback import Reference
from ...pipeline.codecs.formats import LinkCodecs, Payload
from ...pipeline.types import Float32Array, is_finite
from ...sync_algos.base import Slice


class EncodedChunk(NamedTuple):
    """An encoded chunk.

    The chunk is a difference from version `base` of the reference; 0 for none.
    """

    base: int
    elements: int
    payload: Payload


class Coding:
    """The encoding state of one group's rounds.

    Args:
        group: the trainers of the group, `index` among them.
        elements: length of the values.
        part: the slice that this trainer reduces.
    """

    def __init__(
        self, codecs: LinkCodecs, group: tuple[int, ...], index: int, elements: int, part: Slice
    ) -> None:
        self.group = group
        self.elements = elements
        self._part = part
        self._own_values = Reference(codecs.up, elements)
        self._others = {peer: Reference(codecs.up, len(part)) for peer in group if peer != index}
        self._results = Reference(codecs.down, elements)
        self._rounds = 0

    @property
    def memory_bytes(self) -> int:
        """Memory of all references, in bytes."""
        return sum(reference.memory_bytes for reference in self._all())

    def begin(self) -> None:
        for reference in self._all():
            reference.begin()

    def complete(self) -> None:
        """Complete the round; the next one is encoded relative to it."""
        self._rounds += 1
        for reference in self._all():
            reference.complete(self._rounds)

    def encode_up(self, start: int, values: Float32Array) -> tuple[EncodedChunk, Float32Array]:
        """Encode this member's values from `start` on; return also what the reducer decodes.

        Call it once per chunk.
        """
        base, encoded = self._own_values.encode(start, values)
        stop = start + len(values)
        known = self._own_values.values[start:stop] if self._own_values.is_enabled else values
        return EncodedChunk(base, len(values), encoded.payload), known

    def decode_up(self, peer: int, start: int, packed: EncodedChunk) -> Float32Array:
        """Decode another member's values from `start` on.

        The values are in the slice that this member reduces.
        """
        return _decoded(self._others[peer], start - self._part.start, packed)

    def encode_down(self, start: int, means: Float32Array) -> tuple[EncodedChunk, Float32Array]:
        """Encode the means from `start` on; return also what every member decodes.

        Call it once per chunk.
        """
        base, encoded = self._results.encode(start, means)
        known = self._results.values[start : start + len(means)] if self._results.is_enabled else means
        return EncodedChunk(base, len(means), encoded.payload), known

    def decode_down(self, start: int, packed: EncodedChunk) -> Float32Array:
        """Decode the means from `start` on."""
        return _decoded(self._results, start, packed)

    def _all(self) -> list[Reference]:
        return [self._own_values, self._results, *self._others.values()]


class PeerCoding:
    """The encoding state that one trainer keeps of its last group."""

    def __init__(self, codecs: LinkCodecs, index: int) -> None:
        self._codecs = codecs
        self._index = index
        self._last: Coding | None = None

    @property
    def memory_bytes(self) -> int:
        """Memory of the references in bytes; 0 for lossless codecs."""
        return self._last.memory_bytes if self._last is not None else 0

    def begin(self, group: tuple[int, ...], elements: int, part: Slice) -> Coding:
        """Start a group's next all-reduce and return its coding."""
        last = self._last
        if last is None or last.group != group or last.elements != elements:
            codecs = self._codecs if len(group) > 1 else LinkCodecs()
            last = self._last = Coding(codecs, group, self._index, elements, part)
        last.begin()
        return last

    def forget(self) -> None:
        """Drop the references; the next round is sent as float32."""
        self._last = None


def _decoded(reference: Reference, start: int, packed: EncodedChunk) -> Float32Array:
    values = reference.decode(start, packed.base, packed.payload, packed.elements)
    if not is_finite(values):
        # Before the reference changes: rule "What is not finite changes nothing" (docs/architecture.md).
        raise ValueError(f"the {packed.elements} values from {start} are not all finite")
    if not reference.is_enabled:
        return values
    held = reference.values[start : start + packed.elements]
    np.copyto(held, values)
    return held
