"""Memory that two processes of one machine see: a file without a name, made by one, opened by the other.

Nothing of it is in any folder, and it is gone with the last process that has it, however that ends.
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
    """Memory of another process cannot be opened, is not what was told, or is no part of it."""


def running_kernel() -> str:
    """Names the running kernel. Two processes that see the same name can share memory, and read one
    monotonic clock."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class Segment:
    """Shared memory, mapped by this process. One thread uses it.

    Attributes:
        size_bytes: of the whole.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.size_bytes = len(mapped)

    def floats(self, offset: int, count: int) -> Float32Array:
        """float32 [count], on the memory, which stays mapped as long as the array is there.

        Raises:
            SegmentError: that is no part of it.
        """
        end = offset + FLOAT_BYTES * count
        if offset < HEAD_BYTES or offset % FLOAT_BYTES or count < 0 or end > self.size_bytes:
            raise SegmentError(
                f"{count} floats at {offset} are no part of {self.size_bytes} bytes of shared memory"
            )
        return np.frombuffer(self._mapped, np.float32, count, offset)


class OwnSegment(Segment):
    """Made by this process, of which others may open it while `descriptor` is open.

    Attributes:
        token: what its first bytes are, as hexadecimal digits.
    """

    def __init__(self, size_bytes: int) -> None:
        """Takes no memory until it is written. Raises OSError where there is no such memory to be had."""
        if sys.platform != "linux":
            raise OSError("only Linux shares memory that has no name")
        import fcntl

        # Python has them if the C library had when it was built: those for old systems have not.
        if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):
            raise OSError("this Python was built without memfd_create")
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # Whoever maps it is killed by a signal if it is made smaller then: now it cannot be.
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
        """From now on nobody else can open it; who has, and this process, keep it mapped."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OpenedSegment(Segment):
    """Made by another process of this machine."""

    def __init__(self, *, pid: int, descriptor: int, size_bytes: int, boot: str, token: str) -> None:
        """Opens it and checks that it is the one that is meant.

        Args:
            pid: of the process that made it.
            descriptor: of that process.
            size_bytes: of the whole.
            boot: `running_kernel` there.
            token: see `OwnSegment`.

        Raises:
            SegmentError: it cannot be opened from here, or is another one; says why.
        """
        if sys.platform != "linux" or boot != running_kernel():
            raise SegmentError("it is on another machine")
        if not HEAD_BYTES < size_bytes <= LARGEST_BYTES:
            raise SegmentError(f"its size is {size_bytes} bytes")
        place = f"/proc/{pid}/fd/{descriptor}"
        try:
            # Opening anything else, a pipe or a device, might do more than open it.
            if not os.readlink(place).startswith(f"/memfd:{_NAME}"):
                raise SegmentError(f"{place} is no memory of a worker")
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
            raise SegmentError(f"{place} is of another process")


def _mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
    import fcntl

    if not hasattr(fcntl, "F_GET_SEALS"):
        raise SegmentError("this Python was built without seals")
    found = os.fstat(descriptor)
    seals = 0
    with contextlib.suppress(OSError):
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise SegmentError(f"it has {found.st_size} bytes, not {size_bytes} for good")
    return mmap.mmap(descriptor, size_bytes)
