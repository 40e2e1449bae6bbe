"""Shared memory of two processes on one machine.

It is an unnamed file that one creates and the other opens. It is in no folder, and it is freed with the last
process that maps it, however that process ends.
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
# Where values may begin: the token has a page of its own.
HEAD_BYTES: Final = 4096
LARGEST_BYTES: Final = 1 << 36
FLOAT_BYTES: Final = 4
_NAME: Final = "shadowsync-rows"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class SegmentError(ValueError):
    """Shared memory that cannot be used.

    Memory of another process cannot be opened or is not the announced one, or a range is outside of it.
    """


def running_kernel() -> str:
    """Return an identifier of the running kernel.

    Two processes with the same identifier can share memory, and read one monotonic clock.
    """
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class Segment:
    """Shared memory that this process has mapped. One thread uses it.

    Attributes:
        size_bytes: bytes of the whole segment.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.size_bytes = len(mapped)

    def floats(self, offset: int, count: int) -> Float32Array:
        """Return a view of the memory, float32 [count].

        The memory stays mapped while the array lives.

        Raises:
            SegmentError: the range is outside of the memory.
        """
        end = offset + FLOAT_BYTES * count
        if offset < HEAD_BYTES or offset % FLOAT_BYTES or count < 0 or end > self.size_bytes:
            raise SegmentError(
                f"{count} floats at {offset} are not within {self.size_bytes} bytes of shared memory"
            )
        return np.frombuffer(self._mapped, np.float32, count, offset)


class CreatedSegment(Segment):
    """A segment that this process created.

    Others may open it while `descriptor` is open.

    Attributes:
        token: its first bytes, as hexadecimal digits.
    """

    def __init__(self, size_bytes: int) -> None:
        """Create it.

        Memory is used only as it is written. Raises OSError if it cannot be created.
        """
        if sys.platform != "linux":
            raise OSError("only Linux has unnamed shared memory")
        import fcntl

        # Python has these only if the C library had them when it was built, which older ones had not.
        if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):
            raise OSError("this Python was built without memfd_create")
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # A process that maps it would be killed by a signal if it shrank; seals prevent that.
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
        """Close the descriptor, so that nobody else can open it.

        Existing mappings stay.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OpenedSegment(Segment):
    """A segment that another process of this machine created."""

    def __init__(self, *, pid: int, descriptor: int, size_bytes: int, boot: str, token: str) -> None:
        """Open it, and check that it is the announced one.

        Args:
            pid: process that created it.
            descriptor: descriptor in that process.
            size_bytes: bytes of the whole segment.
            boot: `running_kernel` of that process.
            token: see `CreatedSegment`.

        Raises:
            SegmentError: it cannot be opened from here, or is a different one; the text says why.
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
    found = os.fstat(descriptor)
    seals = 0
    with contextlib.suppress(OSError):
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise SegmentError(f"it has {found.st_size} bytes, not a fixed size of {size_bytes}")
    return mmap.mmap(descriptor, size_bytes)
