"""The content of a request's body, which may be compressed."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from aiohttp import web

from .rows import BadRequest

# Bits of the window, and what zlib adds to recognize the header.
_GZIP: Final = 16 + zlib.MAX_WBITS
_WINDOWS: Final = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class TooLarge(BadRequest):
    """A body, or what it unpacks to, is over the limit."""


class Busy(Exception):
    """The bodies of other requests take the memory for them."""


class BodyMemory:
    """Read bodies in bounded memory. Belongs to one asyncio loop.

    Args:
        most_bytes: limit for a body, compressed or not.
        most_bytes_together: limit for the bodies that are being received, together.
    """

    def __init__(self, most_bytes: int, most_bytes_together: int) -> None:
        self._most_bytes = most_bytes
        self._free_bytes = most_bytes_together
        # One at a time, so that there is one unpacked body in memory.
        self._unpacking = asyncio.Lock()

    async def read(self, request: web.Request) -> bytes:
        """Return a request's content.

        Raises TooLarge, Busy, and BadRequest for what is not compressed as the request says.
        """
        window = _window(request)
        size = request.content_length
        if size is not None and size > self._most_bytes:
            raise TooLarge(f"the body has {size:,} bytes, more than {self._most_bytes:,}")
        needed = self._most_bytes if size is None else size
        if needed > self._free_bytes:
            raise Busy("the bodies of other requests take all memory for them; try again")
        self._free_bytes -= needed
        try:
            body = await request.read()
            if window is None:
                return body
            async with self._unpacking:
                return await asyncio.to_thread(unpack, body, window, self._most_bytes)
        except web.HTTPRequestEntityTooLarge as error:
            raise TooLarge(f"the body has more than {self._most_bytes:,} bytes") from error
        finally:
            self._free_bytes += needed


def unpack(body: bytes, window: int, most_bytes: int) -> bytes:
    """Decompress at most `most_bytes`; raises TooLarge and BadRequest."""
    unpacker = zlib.decompressobj(window)
    try:
        unpacked = unpacker.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise BadRequest(f"the body is not compressed as its Content-Encoding says ({error})") from error
    if len(unpacked) > most_bytes:
        raise TooLarge(f"the body unpacks to more than {most_bytes:,} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise BadRequest("the compressed body is cut off, or something follows it")
    return unpacked


def _window(request: web.Request) -> int | None:
    """Return zlib's window for a request's encoding; None for none.

    Raises BadRequest for an unknown one.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return None
    if encoding not in _WINDOWS:
        raise BadRequest(f"Content-Encoding {encoding[:40]!r} is not known here; use gzip, deflate or none")
    return _WINDOWS[encoding]
