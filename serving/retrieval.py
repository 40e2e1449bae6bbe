"""The best items of queries, of several requests together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..pipeline.checkpoint.manifest import CheckpointManifest
from ..pipeline.data.batches.cutter import batch_to_score
from ..pipeline.retrieval.index import VectorIndex
from ..pipeline.retrieval.searched_items import SearchedItems
from ..pipeline.saved_model.input_rows import InputSchema, input_schema
from ..pipeline.saved_model.model import SavedModel
from ..pipeline.types import Float32Array
from .body import decoded
from .joined import RequestRows, all_or_each
from .rows import BadRequest, RowColumns, columns_of_request

MOST_QUERIES: Final = 1000
"""Limit for a request's queries."""
MOST_ITEMS: Final = 1000
"""Limit for the items of a query, and for those that are left out."""
MOST_ANSWERS: Final = 100_000
"""Limit for the items of all queries of a request."""
DEFAULT_K: Final = 10
NOT_FINITE: Final = "the query's vector is not finite"
_FURTHER: Final = frozenset({"k", "exclude"})


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of one request.

    Attributes:
        rows: their rows.
        k: how many items each is answered with.
        exclude: ids of items that none is answered with.
    """

    rows: RowColumns
    k: int = DEFAULT_K
    exclude: frozenset[Any] = frozenset()

    @property
    def count(self) -> int:
        return self.rows.count


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The items of one request's queries.

    Attributes:
        items: for each query the ids of its items, best first; None for a query without a vector.
        scores: float32, of these items, as /score gives them.
        why: the reason for each query without items, by index.
        by: "exact", or "index".
        manifest: the manifest of the checkpoint that made the vectors of queries and items.
    """

    items: list[list[Any] | None]
    scores: list[Float32Array | None]
    why: dict[int, str]
    by: str
    manifest: CheckpointManifest


class Retriever:
    """A model with the vectors of its items, which never change.

    One thread at a time may call `retrieve`, and another one `read`.

    Args:
        model: the model; its tables must not change.
        items: the items as this very model has them.
    """

    def __init__(self, model: SavedModel, items: SearchedItems) -> None:
        self.model, self.items = model, items
        self.schema: InputSchema = input_schema(model.job, model.id_classes, only=model.job.model.query)
        self._rows = RequestRows(self.schema)

    @property
    def by(self) -> str:
        """What finds the items: "exact" search, or an "index"."""
        return "index" if isinstance(self.items.search, VectorIndex) else "exact"

    def read(self, body: bytes) -> Queries:
        """Return the queries of a request's JSON body.

        The body is that of `columns_of_request`, with the columns of queries, and may have `k` and `exclude`,
        a list of ids. Raises BadRequest as it, and for other keys, types and numbers.
        """
        parsed = decoded(body)
        rows = columns_of_request(parsed, self.schema, MOST_QUERIES, _FURTHER)
        return Queries(rows, _k_of(parsed, rows.count), _excluded(parsed, self.items.ids.type))

    def retrieve(self, requests: Sequence[Queries]) -> Sequence[Retrieved | BadRequest]:
        """Return the items of all requests' queries, or each one's fault."""
        return all_or_each(self._together, requests)

    def _together(self, requests: Sequence[Queries]) -> list[Retrieved]:
        rows = self._rows.of([request.rows for request in requests])
        why = dict(rows.why)
        vectors = np.zeros((0, 0), np.float32)
        if len(rows.scored):
            vectors = self.model.query_vectors(batch_to_score(rows.examples))
        finite = np.isfinite(vectors).all(axis=1)
        why |= dict.fromkeys(rows.scored[~finite].tolist(), NOT_FINITE)
        most = max(request.k + len(request.exclude) for request in requests)
        numbers, products = self.items.find(vectors[finite], most) if finite.any() else ((), ())
        scores = np.asarray(products, np.float32) / np.float32(self.model.temperature)
        pair_of_row = dict(zip(rows.scored[finite].tolist(), zip(numbers, scores, strict=True), strict=True))
        answers, start = [], 0
        for request in requests:
            pairs = [pair_of_row.get(start + row) for row in range(request.count)]
            answers.append(self._answer(request, pairs, {row: why[start + row] for row in _without(pairs)}))
            start += request.count
        return answers

    def _answer(self, request: Queries, pairs: Sequence[Any], why: dict[int, str]) -> Retrieved:
        """Return a request's items; `pairs` has the numbers and scores of each query, None without any."""
        items: list[list[Any] | None] = []
        scores: list[Float32Array | None] = []
        for pair in pairs:
            if pair is None:
                items.append(None)
                scores.append(None)
                continue
            numbers, of_numbers = (part[: request.k + len(request.exclude)] for part in pair)
            # An index may find fewer.
            ids = self.items.ids.take(pa.array(numbers[numbers >= 0])).to_pylist()
            kept = [place for place, each in enumerate(ids) if each not in request.exclude][: request.k]
            items.append([ids[place] for place in kept])
            scores.append(of_numbers[kept])
        return Retrieved(items, scores, why, self.by, self.model.manifest)


def _without(pairs: Sequence[Any]) -> list[int]:
    return [row for row, pair in enumerate(pairs) if pair is None]


def _k_of(parsed: Mapping[str, Any], count: int) -> int:
    """Return how many items each query is answered with; raises BadRequest."""
    k = parsed.get("k", DEFAULT_K)
    if type(k) is not int or not 1 <= k <= MOST_ITEMS:
        raise BadRequest(f"k: {k!r} given; give a whole number from 1 to {MOST_ITEMS:,}")
    if k * count > MOST_ANSWERS:
        raise BadRequest(
            f"k: {k:,} items of {count:,} queries; give at most {MOST_ANSWERS:,} items of all queries at once"
        )
    return k


def _excluded(parsed: Mapping[str, Any], of_ids: pa.DataType) -> frozenset[Any]:
    """Return the ids to leave out, as the items have them; raises BadRequest."""
    ids = parsed.get("exclude", [])
    if not isinstance(ids, list) or len(ids) > MOST_ITEMS:
        raise BadRequest(f"exclude: give a list of at most {MOST_ITEMS:,} ids")
    needed = int if pa.types.is_integer(of_ids) else str
    for each in ids:
        if type(each) is not needed:
            named = "integers" if needed is int else "texts"
            raise BadRequest(f"exclude: {each!r} given, and the ids of items are {named}")
    return frozenset(ids)
