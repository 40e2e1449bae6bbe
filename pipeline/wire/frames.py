"""Encoding of messages as frames.

The first frame is a checksummed msgpack header. Then comes one raw frame for each tensor.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError
from .messages import MESSAGES
from .schema import Message, TensorField

# The version of messages and their bodies. The refusal of a peer with another version names both.
PROTOCOL_VERSION = 6
MAX_HEADER_BYTES = 4 << 20
MAX_TENSOR_BYTES = 1 << 30

_CHECKSUM = struct.Struct("<I")


def encode(message: Message) -> list[Any]:
    """Encode a message as frames: the header's bytes, then its tensors.

    The tensors are the message's own C-contiguous arrays, not copies.

    Raises:
        ValueError: a tensor has another dtype or rank than the message declares or is not contiguous, or a
            tensor or the header is larger than the other side would accept.
    """
    schema = MESSAGES[message.KIND]
    shapes = []
    frames: list[Any] = [b""]
    for field in schema.tensors:
        array = getattr(message, field.name)
        if array.dtype != field.dtype or array.ndim != field.rank or not array.flags.c_contiguous:
            raise ValueError(
                f"{message.KIND}.{field.name}: {array.dtype} of shape {array.shape} given; "
                f"C-contiguous {field.dtype} of rank {field.rank} is declared"
            )
        if array.nbytes > MAX_TENSOR_BYTES:
            raise ValueError(
                f"{message.KIND}.{field.name}: {array.nbytes} bytes; at most {MAX_TENSOR_BYTES} may be sent"
            )
        shapes.append(array.shape)
        frames.append(array)
    while len(shapes) > schema.least_tensors and not any(frames[-1].shape):
        del shapes[-1], frames[-1]
    values = [getattr(message, name) for name, _ in schema.header]
    body = msgpack.packb([PROTOCOL_VERSION, message.KIND, values, shapes], use_bin_type=True)
    if len(body) > MAX_HEADER_BYTES:
        raise ValueError(
            f"{message.KIND}: a header of {len(body)} bytes; at most {MAX_HEADER_BYTES} may be sent"
        )
    frames[0] = _CHECKSUM.pack(zlib.crc32(body)) + body
    return frames


def decode(frames: Sequence[Any]) -> Message:
    """Decode frames into a message.

    The frames are bytes-like, without the sender's identity. Tensors are views of the frames.

    Raises:
        ProtocolError: the frames are not a message as declared; the text says what is wrong.
    """
    try:
        return _decode(frames)
    except RecursionError as error:
        # msgpack can decode deeper nesting than Python can format in an error.
        raise ProtocolError("the header is nested too deeply") from error


def _decode(frames: Sequence[Any]) -> Message:
    if not frames:
        raise ProtocolError("the message has no frames")
    header = memoryview(frames[0])
    limit = MAX_HEADER_BYTES + _CHECKSUM.size
    if not _CHECKSUM.size < header.nbytes <= limit:
        raise ProtocolError(
            f"the header has {header.nbytes} bytes; {_CHECKSUM.size + 1} to {limit} are allowed"
        )
    body = header[_CHECKSUM.size :]
    if _CHECKSUM.unpack(header[: _CHECKSUM.size])[0] != zlib.crc32(body):
        raise ProtocolError("the header's checksum does not match")
    try:
        parts = msgpack.unpackb(body, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the header is not msgpack ({error})") from error
    if not isinstance(parts, list) or len(parts) < 2:
        raise ProtocolError("the header is not a list of version, kind, values and shapes")
    if parts[0] != PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {parts[0]!r:.40}; this is version {PROTOCOL_VERSION}",
            remedy="install the same version of shadowsync on every host",
        )
    schema = MESSAGES.get(parts[1]) if isinstance(parts[1], str) else None
    if schema is None or len(parts) != 4:
        raise ProtocolError(f"the message is of the unknown kind {parts[1]!r:.40}")
    _, kind, values, shapes = parts
    if not isinstance(values, list) or len(values) != len(schema.header):
        raise ProtocolError(f"{kind}: {len(schema.header)} header values are expected")
    least, most = schema.least_tensors, len(schema.tensors)
    if not isinstance(shapes, list) or not least <= len(shapes) == len(frames) - 1 <= most:
        expected = f"{least} to {most}" if least < most else f"{most}"
        raise ProtocolError(f"{kind}: {expected} tensors are expected, {len(frames) - 1} came")
    fields: dict[str, Any] = {}
    for (name, check), value in zip(schema.header, values, strict=True):
        try:
            fields[name] = check(value)
        except ValueError as error:
            raise ProtocolError(f"{kind}.{error}") from error
    for field, shape, frame in zip(schema.tensors[: len(shapes)], shapes, frames[1:], strict=True):
        fields[field.name] = _tensor(kind, field, shape, frame)
    return schema.cls(**fields)


def _tensor(kind: str, field: TensorField, shape: Any, frame: Any) -> NDArray[Any]:
    if (
        not isinstance(shape, list)
        or len(shape) != field.rank
        or not all(type(size) is int and 0 <= size <= MAX_TENSOR_BYTES for size in shape)
    ):
        raise ProtocolError(f"{kind}.{field.name}: the shape {shape!r:.80}; rank {field.rank} is expected")
    view = memoryview(frame)
    expected = field.dtype.itemsize
    for size in shape:
        expected *= size
    if view.nbytes != expected or expected > MAX_TENSOR_BYTES:
        raise ProtocolError(f"{kind}.{field.name}: {view.nbytes} bytes came for the shape {shape}")
    return np.frombuffer(view, dtype=field.dtype).reshape(shape)
