"""How the chunks of an all-reduce travel, and what both ends remember for it.

With a lossy codec a round travels as the difference from the last mean, which is the same on all members
bit by bit; what encoding loses is fed back, by each member for its values and by each reducer for its slice.
That needs a last mean: the first round of a generation, a round of another group than the last one's (gossip,
reshuffled groups: every round) and an exchange travel as float32, and start anew. After a round without
result a new generation follows, so that a reference never has to be taken back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..pipeline.data.batch import Float32Array
from ..pipeline.wire.codecs.base import Codec, CodecError, Payload
from ..pipeline.wire.codecs.feedback import Encoded, ErrorFeedback, decode_chunk
from ..pipeline.wire.codecs.float32 import Float32
from ..pipeline.wire.codecs.registry import LinkCodecs

_PLAIN = Float32()


class Packed(NamedTuple):
    """A chunk as it travels, and the name of the codec that wrote it."""

    codec: str
    elements: int
    payload: Payload


class Coding:
    """One round's coding. `reference` is the last mean, float32 [n], or None: then values travel as they are.

    Args:
        up: encodes for the reducer; `down` its results, whose slice starts at `slice_start`.
    """

    def __init__(
        self,
        up: ErrorFeedback,
        down: ErrorFeedback,
        codecs: LinkCodecs,
        reference: Float32Array | None = None,
        slice_start: int = 0,
    ) -> None:
        self._up, self._down, self._codecs = up, down, codecs
        self._reference = reference
        self._slice_start = slice_start

    def encode_up(self, start: int, values: Float32Array) -> Packed:
        """This member's values from `start` on."""
        if self._reference is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values - self._reference[start : start + len(values)]
        return _packed(self._codecs.up, self._up.encode(start, values))

    def decode_up(self, packed: Packed) -> Float32Array:
        """What `encode_up` was given, less the reference."""
        return _unpacked(self._codecs.up, packed)

    def encode_down(self, start: int, means: Float32Array) -> Packed:
        """Means of what `decode_up` gave, from `start` on."""
        return _packed(self._codecs.down, self._down.encode(start - self._slice_start, means))

    def decode_down(self, start: int, packed: Packed, into: Float32Array) -> None:
        """Writes the mean from `start` on into `into`."""
        values = _unpacked(self._codecs.down, packed)
        if self._reference is None:
            into[:] = values
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                np.add(self._reference[start : start + len(into)], values, out=into)


class PeerCoding:
    """What one trainer remembers from round to round for lossy codecs; nothing for float32."""

    def __init__(self, codecs: LinkCodecs) -> None:
        self._codecs = codecs
        self._lossy = codecs.up.lossy or codecs.down.lossy
        self._group: tuple[int, ...] = ()
        self._reference: Float32Array | None = None
        self._up = ErrorFeedback(_PLAIN, 0)
        self._down = ErrorFeedback(_PLAIN, 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the reference and of what is fed back."""
        held = self._reference.nbytes if self._reference is not None else 0
        return held + self._up.memory_bytes + self._down.memory_bytes

    def begin(self, group: tuple[int, ...], elements: int, slice_start: int) -> Coding:
        """The coding of a group's next all-reduce."""
        if self._reference is None or group != self._group or len(self._reference) != elements:
            self.forget()
            return plain()
        return Coding(self._up, self._down, self._codecs, self._reference, slice_start)

    def completed(self, group: tuple[int, ...], result: Float32Array, slice_elements: int) -> None:
        """An all-reduce is complete: the next one of this group refers to its result."""
        if not self._lossy or len(group) == 1:
            return
        if self._reference is None:
            self._reference = result.copy()
            self._up = ErrorFeedback(self._codecs.up, len(result))
            self._down = ErrorFeedback(self._codecs.down, slice_elements)
        else:
            self._reference[:] = result
            self._up.commit()
            self._down.commit()
        self._group = group

    def forget(self) -> None:
        """The next round travels as float32: a new generation, or another group."""
        self._group, self._reference = (), None
        self._up, self._down = ErrorFeedback(_PLAIN, 0), ErrorFeedback(_PLAIN, 0)


def plain() -> Coding:
    """Float32 both ways."""
    nothing = ErrorFeedback(_PLAIN, 0)
    return Coding(nothing, nothing, LinkCodecs())


def _packed(codec: Codec, encoded: Encoded) -> Packed:
    return Packed(codec.name if encoded.coded else _PLAIN.name, len(encoded.decoded), encoded.payload)


def _unpacked(codec: Codec, packed: Packed) -> Float32Array:
    if packed.codec not in (codec.name, _PLAIN.name):
        raise CodecError(f"written by {packed.codec:.20}, while {codec.name} is expected")
    return decode_chunk(codec, packed.payload, packed.elements, coded=packed.codec == codec.name)
