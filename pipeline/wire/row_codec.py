"""Vectors and gradients between workers and embedding nodes, by codecs that need no reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..codecs.formats import Codec, LinkCodecs, Payload
from ..types import Float32Array, Int32Array
from .messages import CodedPush, CodedVectors, Push, Vectors
from .schema import Message

FloatsOf: TypeAlias = Callable[[int, Sequence[int], Int32Array], int]


class RowCoding:
    """Both ends of the link: what leaves is coded, what comes is decoded; other messages pass.

    Float32 travels in the plain messages, without a copy. What a codec loses is not fed back: each row is
    read and written by many, so nobody could hold what it owes. Infinities and NaNs stay what they are.

    Args:
        codecs: up for gradients, down for vectors.
        floats_of: how many floats the gradients of a push have, by its number of rows, its counts and its bag
            lengths (`ShardStore.floats_of`); a worker, to which no push comes, needs none.
    """

    def __init__(self, codecs: LinkCodecs, floats_of: FloatsOf | None = None) -> None:
        self._codecs = codecs
        self._floats_of = floats_of

    def outgoing(self, message: Message) -> Message:
        """The message as it leaves; the same message gives the same bytes."""
        if isinstance(message, Push) and self._codecs.up.lossy:
            payload = self._codecs.up.encode(message.gradients)
            return CodedPush(
                message.request,
                message.id,
                message.version,
                message.rows,
                payload,
                message.lr_scale,
                message.counts,
                message.bag_lengths,
            )
        if isinstance(message, Vectors) and self._codecs.down.lossy:
            payload = self._codecs.down.encode(message.values)
            return CodedVectors(message.request, message.version, len(message.values), payload)
        return message

    def incoming(self, message: Message) -> Message:
        """The message as it was before it was coded; raises CodecError for what is not by the codec, and
        ValueError for a push whose rows, counts and bags do not fit."""
        if isinstance(message, CodedPush) and self._floats_of is not None:
            floats = self._floats_of(len(message.rows), message.counts, message.bag_lengths)
            return Push(
                message.request,
                message.id,
                message.version,
                message.rows,
                _decode(self._codecs.up, message.payload, floats),
                message.lr_scale,
                message.counts,
                message.bag_lengths,
            )
        if isinstance(message, CodedVectors):
            values = _decode(self._codecs.down, message.payload, message.elements)
            return Vectors(message.request, message.version, values)
        return message


def _decode(codec: Codec, payload: Payload, elements: int) -> Float32Array:
    values: Float32Array = codec.decode(payload, elements)
    return values
