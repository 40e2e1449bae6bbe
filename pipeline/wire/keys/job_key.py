"""The key of a job: one file for all its machines.

The secret in the file gives two pairs of CURVE keys (CurveZMQ, RFC 26), one for all listening and one for all
connecting sockets, and the token of the job's page and metrics, see `http_token.py`.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from ...config.secret_file import read_secret
from ...errors import JobFileError

KEY_VARIABLE: Final = "SHADOWSYNC_KEY_FILE"
"""Names the file; a process and all that it starts are of the job with this key."""

INSECURE_VARIABLE: Final = "SHADOWSYNC_INSECURE"
"""Set to 1, it allows sockets off loopback without a key."""

SECRET_BYTES: Final = 32
# Short enough that a web address with the token, in hexadecimal, fits into a line of a terminal.
TOKEN_BYTES: Final = 16
_LINE: Final = re.compile(r"shadowsync-key-1 ([0-9a-f]{64})\s*")


@dataclass(frozen=True)
class CurvePair:
    """A CURVE key pair in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class JobKey:
    """The secret that the nodes of a job share, 32 bytes."""

    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> JobKey:
        """Draw a new key at random."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def read(cls, path: Path) -> JobKey:
        """Read a key file.

        Raises JobFileError if the file is not a key, or as `read_secret` does.
        """
        match = _LINE.fullmatch(read_secret(path, "key", f"make one: {HOW_TO_MAKE}"))
        if match is None:
            raise JobFileError("is not a key", where=str(path), remedy=f"make one: {HOW_TO_MAKE}")
        return cls(bytes.fromhex(match[1]))

    def write(self, path: Path) -> None:
        """Write a new key file; raises JobFileError if it exists or cannot be written."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise JobFileError(
                f"the key cannot be written ({error.strerror})",
                where=str(path),
                remedy="give another path; a key that is in use is never overwritten",
            ) from error
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(self.text)

    @property
    def text(self) -> str:
        """The content of a key file; as secret as the key."""
        return f"shadowsync-key-1 {self.secret.hex()}\n"

    @property
    def server(self) -> CurvePair:
        """The key pair of all listening sockets."""
        return _pair(self.secret, b"shadowsync curve server")

    @property
    def client(self) -> CurvePair:
        """The key pair of all connecting sockets."""
        return _pair(self.secret, b"shadowsync curve client")

    @property
    def http_token(self) -> str:
        """The token of HTTP servers; the key cannot be computed from it."""
        return hmac.digest(self.secret, b"shadowsync http token\x01", "sha256")[:TOKEN_BYTES].hex()


HOW_TO_MAKE: Final = "shadowsync key new FILE"


@lru_cache(8)
def _pair(secret: bytes, label: bytes) -> CurvePair:
    """Derive a key pair with HMAC-SHA256 (RFC 5869, expand)."""
    secret_key = z85.encode(hmac.digest(secret, label + b"\x01", "sha256"))
    return CurvePair(zmq.curve_public(secret_key), secret_key)


def job_key() -> JobKey | None:
    """Return the key of this process's job; None without one.

    Any thread may call. Raises JobFileError for a file that is not a key.
    """
    path = os.environ.get(KEY_VARIABLE, "")
    return _read(path) if path else None


@lru_cache(8)
def _read(path: str) -> JobKey:
    return JobKey.read(Path(path))


def is_insecure() -> bool:
    """Return whether sockets off loopback are allowed without a key."""
    return os.environ.get(INSECURE_VARIABLE, "") == "1"
