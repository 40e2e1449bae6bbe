"""TensorBoard's event files, with scalars only.

The format: TFRecord frames (length, its checksum, data, its checksum; little-endian, masked CRC-32C) around
protocol buffers of `tensorflow.Event`, of which four fields are used. The usual writers take a second of CPU
to import, which is more than all that is ever written here costs.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_LARGEST_FLOAT = 3.4028234663852886e38
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum (RFC 3720, B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """One TFRecord frame."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _float32(value: float) -> bytes:
    # What is finite, as of a model that diverges, and too large for a float32, is its largest.
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        value = math.copysign(_LARGEST_FLOAT, value)
    return struct.pack("<f", value)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def _event(wall_seconds: float, step: int, what: bytes) -> bytes:
    # Event: double wall_time = 1; int64 step = 2; then one of the others.
    time_field = _varint(1 << 3 | _FIXED64) + struct.pack("<d", wall_seconds)
    return time_field + _varint(2 << 3 | _VARINT) + _varint(step) + what


def version_event(wall_seconds: float) -> bytes:
    """The first event of every file."""
    # Event: string file_version = 3.
    return _event(wall_seconds, 0, _bytes_field(3, b"brain.Event:2"))


def scalars_event(wall_seconds: float, step: int, values: Mapping[str, float]) -> bytes:
    """The values of one step by tag."""
    summary = b""
    for tag, value in values.items():
        # Summary.Value: string tag = 1; float simple_value = 2.
        one = _bytes_field(1, tag.encode()) + _varint(2 << 3 | _FIXED32) + _float32(value)
        summary += _bytes_field(1, one)
    # Event: Summary summary = 5.
    return _event(wall_seconds, step, _bytes_field(5, summary))


class EventFile:
    """One file in a folder, made when it is opened. One thread. Raises OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        # Unbuffered: what could not be written must not be tried again by `close`.
        self._file = self.path.open("ab", buffering=0)
        self._write(version_event(now))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values of one step, and hands them to the system at once."""
        if values:
            self._write(scalars_event(time.time(), step, values))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        whole = record(event)
        if self._file.write(whole) != len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
