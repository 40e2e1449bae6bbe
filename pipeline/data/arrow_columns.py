"""What Arrow's arrays hold, as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..types import IndexArray, Uint8Array
from .hashing import PADDING_BYTES


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, or the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Whether these are strings or bytes."""
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in binary + text)


def is_number(kind: pa.DataType) -> bool:
    """Whether these are integers, floats or booleans."""
    return any(check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))


def bytes_of(value: pa.Scalar) -> bytes:
    """A value as it is shown to a user; texts of a file may be no UTF-8, and stay as they are."""
    if pa.types.is_dictionary(value.type):
        value = value.value
    if is_text(value.type) and value.is_valid:
        return bytes(value.as_buffer())
    try:
        return str(value).encode("utf-8", "replace")
    except UnicodeDecodeError:
        # A list with such a text.
        return b"[" + b", ".join(bytes_of(item) for item in value) + b"]"


def numbers_of(column: pa.Array, missing: float) -> NDArray[np.float64]:
    """Integers, floats or booleans as float64 [n], `missing` for nulls."""
    if pa.types.is_null(column.type):
        return np.full(len(column), missing)
    if not column.null_count:
        whole: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        return whole
    filled = pc.fill_null(column, pa.scalar(0).cast(column.type))
    values: NDArray[np.float64] = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    values[column.is_null().to_numpy(zero_copy_only=False)] = missing
    return values


def string_fields(column: pa.Array) -> tuple[Uint8Array, IndexArray, IndexArray]:
    """The bytes of a string column, padded, and where each value lies; nulls have length 0."""
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, raw_offsets, raw_data = column.buffers()
    all_offsets: NDArray[Any] = np.frombuffer(raw_offsets, np.int64 if wide else np.int32)
    offsets: IndexArray = all_offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    buffer = np.zeros(last - first + PADDING_BYTES, np.uint8)
    if last > first:
        buffer[: last - first] = np.frombuffer(raw_data, np.uint8)[first:last]
    lengths: IndexArray = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return buffer, offsets[:-1] - first, lengths
