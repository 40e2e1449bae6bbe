"""Encoding of vectors and gradients between workers and embedding nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..codecs.formats import Codec, LinkCodecs, Payload
from ..types import Float32Array, Int32Array
from .messages import CodedPush, CodedVectors, Push, Vectors
from .schema import Message

FloatsOf: TypeAlias = Callable[[int, Sequence[int], Int32Array], int]


class RowCodec:
    """Encoder of outgoing and decoder of incoming messages, at either end of the link.

    Messages other than vectors and pushes pass unchanged. Float32 values are sent in the plain messages,
    without a copy. There is no error feedback, because many workers read and write each row, so no node could
    hold the row's residual. Infinities and NaNs are kept.

    Args:
        codecs: up for gradients, down for vectors.
        floats_of: function from the number of rows and keys, the counts and the bag lengths of a push to the
            number of floats in its gradients (`ShardStore.floats_of`); None on a worker, which receives no
            pushes.
    """

    def __init__(self, codecs: LinkCodecs, floats_of: FloatsOf | None = None) -> None:
        self._codecs = codecs
        self._floats_of = floats_of

    def outgoing(self, message: Message) -> Message:
        """Encode a message to send; the same message always gives the same bytes."""
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
                message.keys,
                message.sequence,
                message.answered_below,
            )
        if isinstance(message, Vectors) and self._codecs.down.lossy:
            payload = self._codecs.down.encode(message.values)
            return CodedVectors(
                message.request,
                message.version,
                len(message.values),
                payload,
                message.applied,
                message.state,
                message.absent,
            )
        return message

    def incoming(self, message: Message) -> Message:
        """Decode a received message.

        Raises:
            CodecError: the payload is not of the job's codec.
            ValueError: the rows, counts and bags of a push do not fit together.
        """
        if isinstance(message, CodedPush) and self._floats_of is not None:
            requested = len(message.rows) + len(message.keys)
            floats = self._floats_of(requested, message.counts, message.bag_lengths)
            return Push(
                message.request,
                message.id,
                message.version,
                message.rows,
                _decode(self._codecs.up, message.payload, floats),
                message.lr_scale,
                message.counts,
                message.bag_lengths,
                keys=message.keys,
                sequence=message.sequence,
                answered_below=message.answered_below,
            )
        if isinstance(message, CodedVectors):
            values = _decode(self._codecs.down, message.payload, message.elements)
            return Vectors(
                message.request,
                message.version,
                values,
                applied=message.applied,
                state=message.state,
                absent=message.absent,
            )
        return message

    def pushed(self, gradients: Float32Array) -> Float32Array:
        """Return the gradients that a node gets from these, float32 [N]."""
        up = self._codecs.up
        return _decode(up, up.encode(gradients), len(gradients)) if up.lossy else gradients


def _decode(codec: Codec, payload: Payload, elements: int) -> Float32Array:
    values: Float32Array = codec.decode(payload, elements)
    return values
