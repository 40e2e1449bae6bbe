"""The items of one model, and what finds them: exact search, or an index with its recall."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from ..data.batches.cutter import batch_to_score
from ..errors import DataError
from ..saved_model.input_rows import input_schema, read_files
from ..saved_model.model import SavedModel
from ..text.format import counted
from ..types import Float32Array, Int64Array
from .catalogue import Catalogue, catalogue_of_files
from .index import Recall, VectorIndex, require_index
from .top_k import ExactSearch

SearchKind: TypeAlias = Literal["auto", "exact", "index"]

EXACT_ITEMS: Final = 50_000
"""Up to so many items "auto" is exact search: an index saves little (benchmarks/speed/results.md)."""
RECALL_QUERIES: Final = 500
"""Queries that the recall of an index is measured with."""
RECALL_ROWS: Final = 10_000
"""The first rows of files, of which these queries are drawn."""


@dataclass(frozen=True, eq=False)
class SearchedItems:
    """The N items of a catalogue, and what finds them. Several threads may search at once.

    Attributes:
        ids: the items' ids, as their file has them.
        search: exact search, or an index.
        recall: the recall of the index; None with exact search.
        seconds: how long it took to compute or to read the vectors, and to build the index.
    """

    ids: pa.Array
    search: ExactSearch | VectorIndex
    recall: Recall | None
    seconds: float

    def __len__(self) -> int:
        return len(self.search)

    @property
    def description(self) -> str:
        """Describe how many they are, and what finds them."""
        items = counted(len(self), "item")
        if self.recall is None:
            return f"{items} by exact search"
        return f"{items} by an index with a recall of {self.recall.at_100:.1%} at 100, for {self.recall.of}"

    def find(self, queries: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
        """Return the numbers and products of each query's k best items, as the search does."""
        return self.search.search(queries, k)


@dataclass(frozen=True)
class ItemFiles:
    """Where items come from, and how they are searched.

    Attributes:
        patterns: files of items, see `catalogue_of_files`.
        search: "exact"; "index"; or "auto", an index for more than EXACT_ITEMS items.
        queries: files with rows of queries, with which the recall of an index is measured; without any the
            vectors of items stand for queries.
        threads: threads that build an index and search in it.
    """

    patterns: Sequence[str]
    search: SearchKind = "auto"
    queries: Sequence[str] = ()
    threads: int = 1

    def searched(self, model: SavedModel) -> SearchedItems:
        """Return the items as a model has them.

        Raises DataError for a model without towers, and for files that cannot be used; JobFileError if an
        index is needed and its extra is missing.
        """
        return self.with_vectors(model)[1]

    def with_vectors(self, model: SavedModel) -> tuple[Catalogue, SearchedItems]:
        """Return the catalogue as well; raises as `searched`."""
        since = time.monotonic()
        if self.search == "index":
            require_index()
        catalogue = catalogue_of_files(model, self.patterns)
        ids = self._ids_of(catalogue)
        exact = ExactSearch(catalogue.vectors)
        if self.search == "exact" or (self.search == "auto" and len(exact) <= EXACT_ITEMS):
            return catalogue, SearchedItems(ids, exact, None, time.monotonic() - since)
        index = VectorIndex.build(catalogue.vectors, self.threads)
        recall = index.tune(exact, *self._sample(model, catalogue.vectors))
        return catalogue, SearchedItems(ids, index, recall, time.monotonic() - since)

    def _ids_of(self, catalogue: Catalogue) -> pa.Array:
        """Return the ids, which replies and files can have; raises DataError for texts that are none."""
        assert catalogue.ids is not None
        try:
            catalogue.ids.validate(full=True)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"an item's id is not UTF-8 ({error})",
                where=", ".join(self.patterns),
                remedy="give ids as texts in UTF-8, or as integers",
            ) from error
        return catalogue.ids

    def _sample(self, model: SavedModel, vectors: Float32Array) -> tuple[Float32Array, str]:
        """Return the vectors that recall is measured with, and what they are of."""
        drawn = np.random.default_rng(0)
        if not self.queries:
            return vectors[drawn.permutation(len(vectors))[:RECALL_QUERIES]], "items"
        query_vectors = np.unique(query_vectors_of_files(model, self.queries, RECALL_ROWS), axis=0)
        return query_vectors[drawn.permutation(len(query_vectors))[:RECALL_QUERIES]], "queries"


def query_vectors_of_files(model: SavedModel, patterns: Sequence[str], most_rows: int) -> Float32Array:
    """Return the query vectors of the first rows of files, float32 [n, dim], n at most `most_rows`.

    Rows that cannot be read are left out. Raises DataError for files that cannot be used, or without a row.
    """
    job = model.job
    schema = input_schema(job, model.id_classes, only=job.model.query)
    parts, count = list[Float32Array](), 0
    for rows in read_files(patterns, schema):
        examples = rows.examples.slice(0, most_rows - count)
        if len(examples):
            vectors = model.query_vectors(batch_to_score(examples))
            parts.append(vectors[np.isfinite(vectors).all(axis=1)])
            count += len(examples)
        if count >= most_rows:
            break
    if not count:
        raise DataError("has no row with a query", where=", ".join(patterns), remedy="give rows of the data")
    return np.concatenate(parts)
