"""Columns of several requests, joined to be scored together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from .rows import BadRequest, RowColumns

# A value that many rows share takes its bytes for each of them.
_MOST_BYTES: Final = 1 << 28


def joined_columns(requests: Sequence[RowColumns]) -> dict[str, pa.Array]:
    """Return each column of the rows of all requests, request after request.

    Raises BadRequest for values of several types, and for shared values that would take more than 256 MiB.
    """
    counts = [request.count for request in requests]
    owner = pa.array(np.repeat(np.arange(len(requests)), counts))
    arrays: dict[str, pa.Array] = {}
    for name in (*requests[0].columns, *requests[0].shared):
        try:
            if all(name in request.shared for request in requests):
                arrays[name] = _shared([request.shared[name] for request in requests], counts, owner)
            elif all(name in request.columns for request in requests):
                arrays[name] = pa.array([value for request in requests for value in request.columns[name]])
            else:
                arrays[name] = pa.concat_arrays([_own(request, name) for request in requests])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadRequest(f"column {name!r}: {error}") from error
    return arrays


def _own(request: RowColumns, name: str) -> pa.Array:
    if name in request.shared:
        return _shared([request.shared[name]], [request.count], pa.array(np.zeros(request.count, np.int64)))
    return pa.array(request.columns[name])


def _shared(values: list[Any], counts: Sequence[int], owner: pa.Array) -> pa.Array:
    each = pa.array(values)
    if each.nbytes * max(counts) > _MOST_BYTES:
        raise ValueError(f"the context's value is too long for {max(counts):,} rows")
    return each.take(owner)
