"""Rows of several requests, joined to be scored together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from ..pipeline.data.formats.parquet import check_parquet
from ..pipeline.errors import DataError
from ..pipeline.saved_model.input_rows import InputRows, InputSchema, rows_of_columns, value_array
from .rows import BadRequest, RowColumns

Request = TypeVar("Request")
Result = TypeVar("Result")

_WHERE: Final = "the request"

# A value that many rows share takes its bytes for each of them.
_MOST_BYTES: Final = 1 << 28


class RequestRows:
    """Read the rows of several requests as those of one file; used by one thread at a time."""

    def __init__(self, schema: InputSchema) -> None:
        self._schema = schema
        # The types of the columns that were checked last; most requests have the same ones.
        self._checked: dict[str, pa.DataType] = {}

    def of(self, requests: Sequence[RowColumns]) -> InputRows:
        """Return the rows of all requests, request after request.

        Raises BadRequest as `joined_columns`, and DataError for columns of unsuitable types.
        """
        arrays = joined_columns(requests)
        types = {name: array.type for name, array in arrays.items()}
        if types != self._checked:
            check_parquet(_WHERE, pa.schema(list(types.items())), self._schema.read)
            self._checked = types
        numbers = np.arange(1, 1 + sum(request.count for request in requests))
        return rows_of_columns(arrays, self._schema, [], _WHERE, numbers)


def all_or_each(
    answer: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request]
) -> Sequence[Result | BadRequest]:
    """Answer all requests at once; return each one's result or fault.

    If they cannot be read together, each is read by itself, so that a fault is that of one request alone.
    """
    try:
        return answer(requests)
    except (BadRequest, DataError) as error:
        if len(requests) == 1:
            return [BadRequest(str(error))]
        return [all_or_each(answer, [request])[0] for request in requests]


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
