"""Token of a job's HTTP servers.

The token is derived from the job's key, so that no other secret has to be distributed, or read from a file.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from ...config.secret_file import read_secret
from ...errors import JobFileError
from ..endpoints import is_loopback_host
from .job_key import HOW_TO_MAKE, is_insecure, job_key

TOKEN_VARIABLE: Final = "SHADOWSYNC_HTTP_TOKEN_FILE"
"""Names a file with the token, which a process and its children then require, even on loopback."""

# Characters that need no escape in an address, a cookie or a header.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,512}")


def read_token(path: Path) -> str:
    """Read a token from a file.

    Raises JobFileError if the file has no token, or as `read_secret` does.
    """
    remedy = "write one line of 16 or more letters, digits and . _ ~ - into it"
    text = read_secret(path, "token", remedy).strip()
    if not _TOKEN.fullmatch(text):
        raise JobFileError("is not a token", where=str(path), remedy=remedy)
    return text


def given_token() -> str | None:
    """Return the token from this process's file; None without one.

    Any thread may call. Raises JobFileError for a file that has no token.
    """
    path = os.environ.get(TOKEN_VARIABLE, "")
    return _read(path) if path else None


@lru_cache(8)
def _read(path: str) -> str:
    return read_token(Path(path))


def required_token(host: str, port: int) -> str | None:
    """Return the token required at `host`; None for open access.

    Without a token file, access over loopback is open. On other addresses the token of the job's key is
    required. Raises JobFileError there if there is no key either, unless open access was allowed
    (`is_insecure`).
    """
    if (token := given_token()) is not None:
        return token
    if is_loopback_host(host):
        return None
    if (key := job_key()) is not None:
        return key.http_token
    if not is_insecure():
        raise JobFileError(
            "without a token, anyone who can reach this address could read the job's state",
            where=f"{host}:{port}",
            remedy=f"give --key FILE ({HOW_TO_MAKE}) or --http-token FILE, listen on 127.0.0.1,"
            " or give --insecure on a network you trust",
        )
    return None


def http_warnings(what: str, host: str, port: int) -> list[str]:
    """Return warnings for an open HTTP server."""
    if is_loopback_host(host) or given_token() is not None or job_key() is not None:
        return []
    return [f"{what} at {host}:{port} was open to anyone who could reach it (--insecure)."]
