"""Decompression of gzip files with several members and padding."""

from __future__ import annotations

import zlib
from typing import Any, Final

# With more, files of many small members cost more: each member's end copies what is read beyond it.
_READ_BYTES: Final = 1 << 16
# zlib then reads the header and checks the checksum and the size at the end.
_GZIP_WINDOW: Final = 31


class Gunzip:
    """Read a gzip file of one or more members, without padding.

    Zeros may follow a member: tapes and blocks leave them between members and at the end, and gzip skips
    them as well. One thread reads. `readinto` returns 0 at the end. It raises OSError, with a place in the
    file, for anything else between members, for a member that is damaged, and for one that is cut off.

    Args:
        file: a binary file, which is read in order.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._input = b""
        self._read_bytes = 0
        # Bytes of the file before the present member; None between members.
        self._begin: int | None = 0
        self._member = zlib.decompressobj(_GZIP_WINDOW)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of a buffer; return the number of bytes."""
        room = len(buffer)
        while True:
            if not self._input:
                self._input = self._file.read(_READ_BYTES)
                self._read_bytes += len(self._input)
            ends = not self._input
            if self._begin is None and not self._begins_member():
                if ends:
                    return 0
                continue
            if data := self._decompressed(room, ends=ends):
                buffer[: len(data)] = data
                return len(data)

    def _begins_member(self) -> bool:
        """Skip padding; return whether a member follows in what was read."""
        self._input = self._input.lstrip(b"\0")
        if not self._input:
            return False
        self._begin = self._read_bytes - len(self._input)
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        return True

    def _decompressed(self, room: int, *, ends: bool) -> bytes:
        """Return the member's next bytes, at most `room`; maybe none."""
        assert self._begin is not None
        try:
            data = self._member.decompress(self._input, room)
        except zlib.error as error:
            if "header" in str(error):
                what = f"what begins at byte {self._begin:,} is neither gzip nor zeros"
            else:
                what = f"the gzip data that begins at byte {self._begin:,} is damaged: {error}"
            raise OSError(what) from error
        self._input = self._member.unconsumed_tail
        if self._member.eof:
            self._input, self._begin = self._member.unused_data, None
        elif ends and not data:
            begin = f"the gzip data that begins at byte {self._begin:,}"
            raise OSError(f"{begin} is cut off: the file ends at byte {self._read_bytes:,}")
        return data
