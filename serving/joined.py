"""Columns of several requests, joined to be scored together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..pipeline.saved_model.input_rows import value_array
from .rows import BadRequest, RowColumns

# A value that many rows share takes its bytes for each of them.
_MOST_BYTES: Final = 1 << 28


def joined_columns(requests: Sequence[RowColumns]) -> dict[str, pa.Array]:
    """Return each column of the rows of all requests, request after request.

    Raises BadRequest for values of several types, and for shared values that would take more than 256 MiB.
    """
    counts = [request.count for request in requests]
    everywhere = set.intersection(*(set(request.shared) for request in requests))
    somewhere = set().union(*(request.shared for request in requests))
    arrays: dict[str, pa.Array] = {}
    for name in (*requests[0].columns, *requests[0].shared):
        try:
            if name in everywhere:
                arrays[name] = value_array([request.shared[name] for request in requests])
                _check_size(arrays[name], max(counts))
            elif name in somewhere:
                each = chain.from_iterable(_values(request, name) for request in requests)
                arrays[name] = value_array([*each])
            else:
                columns = [request.columns[name] for request in requests]
                arrays[name] = value_array([*chain.from_iterable(columns)])
        except (pa.ArrowException, TypeError) as error:
            raise BadRequest(f"column {name!r} has values of several types ({error})") from error
        except ValueError as error:
            raise BadRequest(f"column {name!r}: {error}") from error
    if everywhere:
        # One call for all of them: each costs more than its values.
        of_requests = pa.record_batch({name: arrays[name] for name in everywhere})
        owner = pa.array(np.repeat(np.arange(len(requests)), counts))
        of_rows = of_requests.take(owner)
        arrays |= dict(zip(of_rows.schema.names, of_rows.columns, strict=True))
    return arrays


def _values(request: RowColumns, name: str) -> Iterable[Any]:
    if name not in request.shared:
        return request.columns[name]
    value = request.shared[name]
    _check_size(value_array([value]), request.count)
    return repeat(value, request.count)


def _check_size(values: pa.Array, count: int) -> None:
    """Raise ValueError if a context's values are too long for so many rows."""
    if values.nbytes * count > _MOST_BYTES:
        raise ValueError(f"the context's value is too long for {count:,} rows")
