"""A client of `shadowsync serve`."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping, Sequence, Set
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import NDArray

from ..pipeline.errors import ClusterError, DataError, JobFileError
from ..pipeline.types import Float32Array

Rows = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Sequence[Any] | NDArray[Any]]


class ScoringClient:
    """Score rows by a server, over one connection. Used by one thread.

    Args:
        url: address of the server, such as "http://127.0.0.1:8080", or its place behind a proxy, such as
            "https://host/clicks". Raises JobFileError for another kind of URL.
        token: token of the server; "" for a server that needs none.
        timeout_seconds: limit for a reply.
    """

    def __init__(self, url: str, token: str = "", timeout_seconds: float = 30.0) -> None:
        self.url = url
        parts = _parts_of(url)
        self._prefix = parts.path.rstrip("/")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, rows: Rows | Columns, context: Mapping[str, Any] | None = None) -> Float32Array:
        """Return the probabilities of rows, or own scores, float32 [n]; NaN for a row without a score.

        Of a model with several labels they are [n, T], in the order of the labels.

        `rows` is a list of objects, one for each row, or an object of columns. `context` has the columns
        whose value all rows share, such as those of the user and the page.

        Raises DataError for rows that the server cannot score, ClusterError if it does not reply.
        """
        reply = self._request("POST", "/score", self._encoded(_body(rows, context)), {"faults"})
        probabilities = reply["probabilities" if "probabilities" in reply else "scores"]
        if isinstance(probabilities, dict):
            return np.stack([_array(values) for values in probabilities.values()], axis=1)
        return _array(probabilities)

    def retrieve(
        self,
        queries: Rows | Columns,
        k: int = 10,
        context: Mapping[str, Any] | None = None,
        exclude: Sequence[Any] = (),
    ) -> list[list[tuple[Any, float]]]:
        """Return the ids and scores of the k best items of each query, best first; none without a vector.

        `queries` and `context` have the columns of queries, as `score` takes rows; `exclude` has ids of items
        to leave out. Raises as `score`, and ClusterError if the server has no items.
        """
        body = _body(queries, context) | {"k": k, "exclude": list(exclude)}
        reply = self._request("POST", "/retrieve", self._encoded(body), {"items", "scores"})
        return [
            [] if items is None else list(zip(items, scores, strict=True))
            for items, scores in zip(reply["items"], reply["scores"], strict=True)
        ]

    def model(self) -> dict[str, Any]:
        """Return the run, trained examples and columns of the served model."""
        return self._request("GET", "/model")

    def stats(self) -> dict[str, Any]:
        """Return the server's counts and latency."""
        return self._request("GET", "/stats")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _encoded(self, body: Mapping[str, Any]) -> str:
        try:
            return json.dumps(body, allow_nan=False, default=_plain)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the rows cannot be sent ({error})",
                where=self.url,
                remedy="give texts, finite numbers, booleans and lists, and None where a value is missing",
            ) from error

    def _request(
        self, method: str, path: str, body: str | None = None, fields: Set[str] = frozenset()
    ) -> dict[str, Any]:
        """Return a reply that has the fields; raises as `score`."""
        # A server closes a connection that is idle, and when it ends; a new one finds it started again.
        known = self._connection.sock is not None
        try:
            status, text = self._exchange(method, path, body)
        except ConnectionError as error:
            self._connection.close()
            if not known:
                raise self._no_reply(error) from error
            return self._request(method, path, body, fields)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._no_reply(error) from error
        return self._read(status, text, fields)

    def _read(self, status: int, text: bytes, fields: Set[str]) -> dict[str, Any]:
        """Return a reply with these fields; raises as `score` for what a proxy or another server replies."""
        reply: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            reply = json.loads(text)
        if isinstance(reply, dict):
            if status == 200 and reply.keys() >= fields:
                return reply
            if "error" in reply:
                why = str(reply["error"])
                if status == 400:
                    raise DataError(why, where=self.url)
                raise ClusterError(f"replied {status}: {why}", where=self.url)
        raise ClusterError(
            f"replied {status}: {text.decode(errors='replace').strip()[:200]}",
            where=self.url,
            remedy="check that shadowsync serve runs there",
        )

    def _exchange(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        self._connection.request(method, self._prefix + path, body, self._headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _no_reply(self, error: Exception) -> ClusterError:
        return ClusterError(
            f"does not reply ({error!r})", where=self.url, remedy="check that shadowsync serve runs there"
        )


def _parts_of(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises JobFileError for one that does not say where the server is, or has parts that a client cannot use.
    """
    # A port that is no number, or brackets that do not fit, are a ValueError.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        # Without a host or a scheme the connection would be one to this machine's port 80.
        is_place = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_place and parts.username is None and not (parts.query or parts.fragment):
            return parts
    # The URL may have a password, which is not said.
    raise JobFileError(
        "no address of a server given",
        where="url",
        remedy="write http://HOST:PORT, or https://HOST/PATH; a token is given as `token`",
    )


def _body(rows: Rows | Columns, context: Mapping[str, Any] | None) -> dict[str, Any]:
    body = {"columns": dict(rows)} if isinstance(rows, Mapping) else {"rows": [dict(row) for row in rows]}
    return {"context": dict(context or {}), **body}


def _plain(value: object) -> Any:
    """Return a value of numpy as one of Python; raises TypeError for other types."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no type of JSON")


def _array(probabilities: list[float | None]) -> Float32Array:
    return np.array([np.nan if p is None else p for p in probabilities], np.float32)
