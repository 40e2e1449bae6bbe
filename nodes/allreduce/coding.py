"""How the chunks of an all-reduce travel, and what both ends remember for it.

With a lossy codec a chunk travels as the difference from what the receiver decoded of it last time, which
both ends hold; so what encoding loses is part of the next difference. A member holds that of its own values
(n elements), and of each member's for the slice that it reduces (n together); all hold the last result (n).
Differences from the last result, with residuals of their own, would need less, and do not converge: what is
not sent at once stays in the next difference as well as in the residual, and is sent twice.

The first round of a generation, one of another group than the last (gossip, reshuffled groups: every round)
and every exchange travel as float32. After a round without a result comes a new generation, so that no
reference has to be taken back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...pipeline.codecs.feedback import Reference
from ...pipeline.codecs.formats import LinkCodecs, Payload
from ...pipeline.types import Float32Array
from ...sync_algos.base import Slice


class Packed(NamedTuple):
    """A chunk as it travels; `base` is the version that it is the difference from, 0: of nothing."""

    base: int
    elements: int
    payload: Payload


class Coding:
    """The coding of the rounds of one group of trainers, `part` being the slice that this one reduces."""

    def __init__(
        self, codecs: LinkCodecs, group: tuple[int, ...], index: int, elements: int, part: Slice
    ) -> None:
        self.group = group
        self.elements = elements
        self._part = part
        self._own = Reference(codecs.up, elements)
        self._others = {peer: Reference(codecs.up, len(part)) for peer in group if peer != index}
        self._results = Reference(codecs.down, elements)
        self._rounds = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the references."""
        return sum(reference.memory_bytes for reference in self._all())

    def begin(self) -> None:
        """A round starts."""
        for reference in self._all():
            reference.begin()

    def complete(self) -> None:
        """The round is complete: the next one refers to it."""
        self._rounds += 1
        for reference in self._all():
            reference.complete(self._rounds)

    def encode_up(self, start: int, values: Float32Array) -> tuple[Packed, Float32Array]:
        """This member's values from `start` on; gives also what the reducer makes of them. Once a chunk."""
        base, encoded = self._own.encode(start, values)
        stop = start + len(values)
        known = self._own.values[start:stop] if self._own.is_enabled else values
        return Packed(base, len(values), encoded.payload), known

    def decode_up(self, peer: int, start: int, packed: Packed) -> Float32Array:
        """Another's values from `start` on, of the slice that this one reduces."""
        return _decoded(self._others[peer], start - self._part.start, packed)

    def encode_down(self, start: int, means: Float32Array) -> tuple[Packed, Float32Array]:
        """The means from `start` on; gives also what everyone makes of them. Once a chunk."""
        base, encoded = self._results.encode(start, means)
        known = self._results.values[start : start + len(means)] if self._results.is_enabled else means
        return Packed(base, len(means), encoded.payload), known

    def decode_down(self, start: int, packed: Packed) -> Float32Array:
        """The means from `start` on."""
        return _decoded(self._results, start, packed)

    def _all(self) -> list[Reference]:
        return [self._own, self._results, *self._others.values()]


class PeerCoding:
    """What one trainer remembers from round to round: the coding of the group that it met last."""

    def __init__(self, codecs: LinkCodecs, index: int) -> None:
        self._codecs = codecs
        self._index = index
        self._last: Coding | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the references; none for codecs that lose nothing."""
        return self._last.memory_bytes if self._last is not None else 0

    def begin(self, group: tuple[int, ...], elements: int, part: Slice) -> Coding:
        """The coding of a group's next all-reduce."""
        last = self._last
        if last is None or last.group != group or last.elements != elements:
            codecs = self._codecs if len(group) > 1 else LinkCodecs()
            last = self._last = Coding(codecs, group, self._index, elements, part)
        last.begin()
        return last

    def forget(self) -> None:
        """The next round travels as float32."""
        self._last = None


def plain(group: tuple[int, ...], index: int) -> Coding:
    """Float32 both ways."""
    return Coding(LinkCodecs(), group, index, 0, Slice(0, 0))


def _decoded(reference: Reference, start: int, packed: Packed) -> Float32Array:
    values = reference.decode(start, packed.base, packed.payload, packed.elements)
    if not reference.is_enabled:
        return values
    held = reference.values[start : start + packed.elements]
    np.copyto(held, values)
    return held
