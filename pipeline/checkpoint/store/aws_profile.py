"""Credentials for s3 from the file that Amazon's own programs share.

obstore does not read it. It is read again for each request. So whoever renews the credentials in it while a
job trains renews those of every node on that machine.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...text.wall_clock import now
from .contract import StorageError

_BEFORE: Final = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""Variables whose credentials come first, as with Amazon's programs."""

Credentials = dict[str, Any]


def profile_credentials() -> Callable[[], Credentials] | None:
    """Return what reads the profile's credentials; None where others are to be used.

    File and profile are those of AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE. Without either of them a file
    that is not there, or has no keys, is passed over. Raises StorageError if one of them is set, and there
    are no keys.
    """
    if any(os.environ.get(name) for name in _BEFORE):
        return None
    path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    profile = os.environ.get("AWS_PROFILE") or "default"

    def read() -> Credentials:
        return _read(path, profile)

    try:
        read()
    except ValueError as error:
        if os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.environ.get("AWS_PROFILE"):
            remedy = "correct AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE, or write the keys there"
            raise StorageError(str(error), where=str(path), remedy=remedy) from error
        return None
    return read


def _read(path: Path, profile: str) -> Credentials:
    """Read the credentials of a profile, in obstore's form.

    Raises ValueError if there are none.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        keys = parser[profile]
        return {
            "access_key_id": keys["aws_access_key_id"],
            "secret_access_key": keys["aws_secret_access_key"],
            "token": keys.get("aws_session_token"),
            # Already over, so that they are asked for again each time.
            "expires_at": now(),
        }
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as error:
        raise ValueError(f"no keys of the profile {profile} can be read ({error})") from error
