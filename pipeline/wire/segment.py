"""Shared memory of two processes on one machine.

The memory is an unnamed file, which one process creates and the other opens. The file is in no folder. It is
freed with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import stat
import sys
from pathlib import Path
from typing import Final

import numpy as np

from ..types import Float32Array

TOKEN_BYTES: Final = 16
# Values begin after this many bytes, because the token has a page of its own.
HEAD_BYTES: Final = 4096
LARGEST_BYTES: Final = 1 << 36
FLOAT_BYTES: Final = 4
_NAME: Final = "shadowsync-rows"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class SegmentError(ValueError):
    """Shared memory cannot be used.

    The memory cannot be opened, is not the announced one, or does not have the requested range.
    """


def running_kernel() -> str:
    """Return an id of the running kernel.

    Two processes with the same id can share memory, and read the same monotonic clock.
    """
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class Segment:
    """Shared memory that this process has mapped; used by one thread.

    Attributes:
        size_bytes: bytes of the whole segment.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.size_bytes = len(mapped)

    def floats(self, offset: int, count: int) -> Float32Array:
        """Return a view of the memory, float32 [count], from byte `offset` on.

        The memory stays mapped while the array lives.

        Raises:
            SegmentError: the range is outside of the memory, or overlaps the token's page.
        """
        end = offset + FLOAT_BYTES * count
        if offset < HEAD_BYTES or offset % FLOAT_BYTES or count < 0 or end > self.size_bytes:
            raise SegmentError(
                f"{count} floats at {offset} are not within {self.size_bytes} bytes of shared memory"
            )
        return np.frombuffer(self._mapped, np.float32, count, offset)


class CreatedSegment(Segment):
    """A segment that this process created.

    Attributes:
        descriptor: the memory's file descriptor; other processes may open the segment while it is open.
        token: the first bytes of the memory, in hexadecimal.
    """

    def __init__(self, size_bytes: int) -> None:
        """Create the segment.

        The segment takes memory only where it is written. Raises OSError if it cannot be created.
        """
        if sys.platform != "linux":
            raise OSError("only Linux has unnamed shared memory")
        import fcntl

        # Python lacks these if it was built with an old C library.
        if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):
            raise OSError("this Python was built without memfd_create")
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # If the memory shrank, a signal would kill a process that maps it. Seals prevent that.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            super().__init__(mmap.mmap(self.descriptor, size_bytes))
        except BaseException:
            self.close()
            raise
        token = secrets.token_bytes(TOKEN_BYTES)
        self._mapped[:TOKEN_BYTES] = token
        self.token = token.hex()

    def close(self) -> None:
        """Close the descriptor, so that no other process can open the segment.

        Existing mappings stay.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OpenedSegment(Segment):
    """A segment that another process of this machine created."""

    def __init__(self, *, pid: int, descriptor: int, size_bytes: int, boot: str, token: str) -> None:
        """Open the segment, and check that it is the announced one.

        Args:
            pid: process that created the segment.
            descriptor: descriptor in that process.
            size_bytes: bytes of the whole segment.
            boot: `running_kernel` of that process.
            token: see `CreatedSegment`.

        Raises:
            SegmentError: the segment cannot be opened from here, or is another one; the text says why.
        """
        if sys.platform != "linux" or boot != running_kernel():
            raise SegmentError("it is on another machine")
        if not HEAD_BYTES < size_bytes <= LARGEST_BYTES:
            raise SegmentError(f"its size is {size_bytes} bytes")
        place = f"/proc/{pid}/fd/{descriptor}"
        try:
            # Opening a pipe or a device could have side effects.
            if not os.readlink(place).startswith(f"/memfd:{_NAME}"):
                raise SegmentError(f"{place} is not memory of a worker")
            opened = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise SegmentError(f"{place} cannot be opened ({error.strerror})") from error
        try:
            super().__init__(_mapped(opened, size_bytes))
        except OSError as error:
            raise SegmentError(f"{place} cannot be mapped ({error.strerror})") from error
        finally:
            os.close(opened)
        self.token = token
        if self._mapped[:TOKEN_BYTES].hex() != token:
            raise SegmentError(f"{place} belongs to another process")


def _mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    import fcntl

    if not hasattr(fcntl, "F_GET_SEALS"):
        raise SegmentError("this Python was built without seals")
    status = os.fstat(descriptor)
    seals = 0
    with contextlib.suppress(OSError):
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise SegmentError(f"it has {status.st_size} bytes, not a fixed size of {size_bytes}")
    return mmap.mmap(descriptor, size_bytes)
