"""Vectors and gradients between workers and embedding nodes, by codecs that need no reference."""

from __future__ import annotations

import numpy as np

from ..pipeline.data.batch import Float32Array
from ..pipeline.wire.codecs.base import Codec, Payload
from ..pipeline.wire.codecs.registry import LinkCodecs
from ..pipeline.wire.messages import CodedPush, CodedVectors, Push, Vectors
from ..pipeline.wire.schema import Message


class RowCoding:
    """Both ends of the link: what leaves is coded, what comes is decoded; other messages pass.

    Float32 travels in the plain messages, without a copy. What a codec loses is not fed back: each row is
    read and written by many, so nobody could hold what it owes. Infinities and NaNs stay what they are.

    Args:
        codecs: up for gradients, down for vectors.
        dim: floats of a row.
    """

    def __init__(self, codecs: LinkCodecs, dim: int) -> None:
        self._codecs = codecs
        self._dim = dim

    def outgoing(self, message: Message) -> Message:
        """The message as it leaves; the same message gives the same bytes."""
        if isinstance(message, Push) and self._codecs.up.lossy:
            payload = self._codecs.up.encode(message.gradients.reshape(-1))
            return CodedPush(message.request, message.id, message.version, message.rows, payload)
        if isinstance(message, Vectors) and self._codecs.down.lossy:
            payload = self._codecs.down.encode(message.values.reshape(-1))
            return CodedVectors(message.request, message.version, len(message.values), payload)
        return message

    def incoming(self, message: Message) -> Message:
        """The message as it was before it was coded; raises CodecError for what is not by the codec."""
        if isinstance(message, CodedPush):
            gradients = self._decode(self._codecs.up, message.payload, len(message.rows))
            return Push(message.request, message.id, message.version, message.rows, gradients)
        if isinstance(message, CodedVectors):
            values = self._decode(self._codecs.down, message.payload, message.rows)
            return Vectors(message.request, message.version, values)
        return message

    def _decode(self, codec: Codec, payload: Payload, rows: int) -> Float32Array:
        values: Float32Array = np.reshape(codec.decode(payload, rows * self._dim), (rows, self._dim))
        return values
