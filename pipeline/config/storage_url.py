"""The URL of a storage of checkpoints, in the job file and in commands."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

SCHEMES: Final = ("s3", "gs", "az", "file")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(location: str) -> bool:
    """Return whether a location is a URL, and no path."""
    return _URL.match(location) is not None


def storage_fault(url: str) -> str:
    """Return what is wrong with the URL of a storage; "" if nothing is."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return str(error)
    if parts.scheme not in SCHEMES or not is_url(url):
        return "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
    if parts.username or parts.password or parts.query or parts.fragment:
        return "files of the run keep the URL, so give credentials by environment variables instead"
    if parts.scheme == "file":
        fits = not parts.netloc and parts.path.strip("/")
        return "" if fits else "write file:///FOLDER, with an absolute path"
    if not parts.netloc or not parts.path.strip("/"):
        return f"it needs a bucket and a prefix: write {parts.scheme}://BUCKET/PREFIX"
    return ""
