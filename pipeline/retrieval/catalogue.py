"""A catalogue: items with their ids and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from ..data.batches.cutter import batch_to_score
from ..data.schema import Examples
from ..errors import DataError
from ..saved_model.model import SavedModel, require_towers
from ..types import Float32Array, Int64Array
from .items import Items, items_of_files

Tower: TypeAlias = Literal["query", "item"]

VECTOR_BATCH: Final = 4096


@dataclass(frozen=True, eq=False)
class Catalogue:
    """N items with their vectors; an item's number is its place.

    Attributes:
        ids: the ids, as the file has them; None where they are only known by hashes.
        identities: int64 [N], what tells items apart, see `ItemReader`.
        vectors: float32 [N, dim].
    """

    ids: pa.Array | None
    identities: Int64Array
    vectors: Float32Array

    @classmethod
    def of(cls, items: Items, model: SavedModel) -> Catalogue:
        """Return items with their vectors by a model of the job; raises DataError as `tower_vectors`."""
        parts = [tower_vectors(model, "item", part) for part in items.examples]
        return cls(items.ids, items.identities, np.concatenate(parts))


def catalogue_of_files(model: SavedModel, patterns: Sequence[str]) -> Catalogue:
    """Return the catalogue of the files that match, in the order of their rows.

    Raises DataError as `items_of_files`, and for a model without towers.
    """
    require_towers(model)
    return Catalogue.of(items_of_files(model.job, model.id_classes, patterns), model)


def tower_vectors(model: SavedModel, tower: Tower, examples: Examples) -> Float32Array:
    """Return the vectors of rows by a tower, float32 [n, dim]; raises DataError if one is not finite."""
    vectors_of = model.item_vectors if tower == "item" else model.query_vectors
    parts = [
        vectors_of(batch_to_score(examples.slice(start, start + VECTOR_BATCH)))
        for start in range(0, len(examples), VECTOR_BATCH)
    ]
    vectors = np.concatenate(parts)
    if not np.isfinite(vectors).all():
        raise DataError(
            f"a vector of the {tower} tower is not finite: the model has diverged",
            where=str(model.folder),
            remedy="train again with a lower trainer.lr",
        )
    return vectors
