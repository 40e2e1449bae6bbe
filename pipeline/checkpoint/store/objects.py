"""A bucket of objects as a store of checkpoints.

The library is obstore (extra `storage`). Endpoint, region and credentials come from the environment, as with
other programs of the provider: AWS_* of s3, GOOGLE_* of gs, AZURE_STORAGE_* of az.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, Final

from .aws_profile import profile_credentials
from .contract import Hashing, ObjectMissing, StorageError, Store, Stored

CHUNK_BYTES: Final = 8 << 20
"""Size of the parts of an upload."""

_UPLOADS_AT_ONCE: Final = 4
# A server that is gone is noticed within seconds, since a checkpoint that fails is tried again anyway.
_RETRIES: Final = 3
_RETRIES_END: Final = timedelta(seconds=90)
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
REQUEST_SECONDS: Final = 60.0
"""The longest that one request takes, by default."""

_LONGEST_REASON: Final = 240
# Where a cloud's machine gives the credentials of its role, asked last.
_METADATA_ADDRESS: Final = "169.254.169.254"
# Status 401 or 403, of which obstore makes no error of its own where it lists objects; and codes of S3 that
# come with status 400.
_REFUSED: Final = re.compile(
    r"status code: 40[13]\b|<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>"
)
_CREDENTIALS_REMEDY: Final = (
    "give the account its rights back, or renew the credentials: those of a file or a role are read again;"
    " for those of the environment, resume the job with new ones (docs/storage.md)"
)
# Only in the details of obstore's errors it is said why there was no connection.
_TRANSPORT: Final = re.compile(
    r"Error performing [A-Z]+ (https?://[^/ ]+).*HttpError \{\s*kind: (Connect|Timeout)(.*)", re.DOTALL
)
_DETAIL: Final = re.compile(r'(?:message|error): "([^"]+)"')
_PANIC_REMEDY: Final = "look for line breaks and other control characters in the credentials"
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def connect(url: str, request_seconds: float = REQUEST_SECONDS) -> Any:
    """Make obstore's store of a URL; sends nothing.

    A request that takes longer than `request_seconds` is tried again, or fails. Raises StorageError for a URL
    that it does not take.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    client = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timedelta(seconds=request_seconds),
        "allow_http": _allows_http(url),
    }
    retries = {"max_retries": _RETRIES, "retry_timeout": _RETRIES_END}
    options: dict[str, Any] = {"client_options": client, "retry_config": retries}
    if url.startswith("s3:") and (credentials := profile_credentials()) is not None:
        options["credential_provider"] = credentials
    try:
        return from_url(url, **options)
    except (BaseError, ValueError, OSError) as error:
        raise StorageError(f"cannot be used ({reason_of(error)})", where=url) from error


def _allows_http(url: str) -> bool:
    """Return whether the environment names an endpoint without TLS.

    obstore takes AWS_ALLOW_HTTP itself, but not beside other options of the client.
    """
    names = _ENDPOINTS[url.partition(":")[0]]
    endpoint = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true") or endpoint.startswith("http://")


class ObjectStore(Store):
    """Objects of a bucket, below a prefix; see `Store`.

    Args:
        objects: obstore's store, for example of `connect`.
        where: its URL, for errors.
    """

    def __init__(self, objects: Any, where: str) -> None:
        # Imported by the nodes that use it, since it starts threads.
        import obstore

        self._obstore = obstore
        self._objects = objects
        self.where = where

    def put(self, name: str, pieces: Iterable[bytes]) -> Stored:
        """Upload an object, in parts of CHUNK_BYTES if it is larger."""
        hashing = Hashing(pieces)
        upload, first = iter(hashing), bytearray()
        while len(first) < CHUNK_BYTES and (piece := next(upload, None)) is not None:
            first += piece
        with self._named(name):
            if len(first) < CHUNK_BYTES:
                self._obstore.put(self._objects, name, bytes(first), use_multipart=False)
            else:
                self._obstore.put(
                    self._objects,
                    name,
                    chain((bytes(first),), upload),
                    use_multipart=True,
                    chunk_size=CHUNK_BYTES,
                    max_concurrency=_UPLOADS_AT_ONCE,
                )
        return hashing.stored(name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Upload an object on the condition that there is none."""
        try:
            with self._named(name):
                self._obstore.put(self._objects, name, content, mode="create", use_multipart=False)
        except _AlreadyThere:
            # A first try whose answer was lost may have written it.
            return self.get(name) == content
        return True

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._named(name):
            for piece in self._obstore.get(self._objects, name).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with self._named(name):
            return bytes(self._obstore.get_range(self._objects, name, start=start, length=length))

    def list(self) -> dict[str, int]:
        """Return the objects' sizes."""
        with self._named(""):
            sizes = {
                str(item["path"]): int(item["size"])
                for page in self._obstore.list(self._objects)
                for item in page
            }
        return dict(sorted(sizes.items()))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, many with each request."""
        doomed = list(names)
        if not doomed:
            return
        try:
            with self._named(""):
                self._obstore.delete(self._objects, doomed)
        except ObjectMissing:
            # Some stores say so of an object, and leave the rest: one by one then.
            for name in doomed if len(doomed) > 1 else ():
                self.delete([name])

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Raise what obstore raises as an error that names the object."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        where = f"{self.where}/{name}" if name else self.where
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            raise _AlreadyThere("exists already", where=where) from error
        except FileNotFoundError as error:
            raise ObjectMissing(f"cannot be found ({reason_of(error)})", where=where) from error
        except BaseError as error:
            if are_credentials_refused(error):
                what = f"the storage refuses the credentials ({reason_of(error)})"
                raise StorageError(what, where=where, remedy=_CREDENTIALS_REMEDY) from error
            raise StorageError(
                f"the storage refuses or does not answer ({reason_of(error)})", where=where
            ) from error
        except BaseException as error:
            # No Exception: what cannot be a header, as an access key with a line break, ends a request so.
            if type(error).__name__ != "PanicException":
                raise
            what = f"the client of the storage failed ({reason_of(error)})"
            raise StorageError(what, where=where, remedy=_PANIC_REMEDY) from error


class _AlreadyThere(StorageError):
    """A conditional write found an object."""


def are_credentials_refused(error: BaseException) -> bool:
    """Return whether a request failed because of its credentials.

    They are wrong, revoked or expired, or may not do this.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    return _REFUSED.search(str(error)) is not None


def reason_of(error: BaseException) -> str:
    """Return why a request failed.

    This is the provider's code and message, what hindered the connection, or the first line of the error.
    """
    text = str(error)
    if _METADATA_ADDRESS in text:
        return "no credentials are in the environment, and the machine has no role"
    code, message = (re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("Code", "Message"))
    if code is not None:
        # Azure has more lines, of its own numbers.
        said = message[1].strip().partition("\n")[0] if message is not None else ""
        return f"{code[1]}: {said}"[:_LONGEST_REASON] if said else code[1]
    if (transport := _TRANSPORT.search(text)) is not None:
        address, kind, details = transport.groups()
        detail = _DETAIL.findall(details)
        what = "no answer in time" if kind == "Timeout" else "no connection"
        return f"{address}: {what}{f', {detail[-1]}' if detail else ''}"[:_LONGEST_REASON]
    return text.strip().partition("\n")[0][:_LONGEST_REASON]
