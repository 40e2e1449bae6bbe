"""A catalogue: items with their ids and vectors, from a file of items or from rows of the job's data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ..data.bad_rows import BadRows
from ..data.batches.cutter import batch_of
from ..data.batches.span_plan import plan_spans
from ..data.columns.fields import TextRules, null_mask
from ..data.schema import Examples
from ..data.span import Span
from ..errors import DataError
from ..input.job_input import JobInput
from ..models.two_tower import ItemIds
from ..saved_model.input_rows import InputRows, InputSchema, input_schema, read_input
from ..saved_model.model import SavedModel, require_towers
from ..types import BatchId, Float32Array, Int64Array, Mask

VECTOR_BATCH: Final = 4096
TRAINING: Final = "training"
"""Where a file of items is named, the items of the training part."""
_REMEDY: Final = "give each item once, in a row with its id"


@dataclass(frozen=True, eq=False)
class Items:
    """The N items of a catalogue, as rows of the job's data; any model of the job has vectors of them.

    Attributes:
        ids: the ids, as the file has them; None where they are only known by hashes.
        identities: int64 [N], what tells items apart in batches, see `ItemIds`.
        examples: the items' rows; what is not of items is missing in them, or of any query.
    """

    ids: pa.Array | None
    identities: Int64Array
    examples: Sequence[Examples]

    def __len__(self) -> int:
        return len(self.identities)

    def vectors(self, model: SavedModel) -> Float32Array:
        """Return their vectors, float32 [N, dim]; raises DataError if one is not finite."""
        parts = [
            model.item_vectors(batch_of(BatchId(0, 0, 0, 0), part.slice(start, start + VECTOR_BATCH)))
            for part in self.examples
            for start in range(0, len(part), VECTOR_BATCH)
        ]
        vectors = np.concatenate(parts)
        if not np.isfinite(vectors).all():
            raise DataError(
                "an item's vector is not finite: the model has diverged",
                where=str(model.folder),
                remedy="train again with a lower trainer.lr",
            )
        return vectors


@dataclass(frozen=True, eq=False)
class Catalogue:
    """N items with their vectors; an item's number is its place.

    Attributes:
        ids: the ids, as the file has them; None where they are only known by hashes.
        identities: int64 [N], what tells items apart in batches, see `ItemIds`.
        vectors: float32 [N, dim].
    """

    ids: pa.Array | None
    identities: Int64Array
    vectors: Float32Array

    @classmethod
    def of(cls, items: Items, model: SavedModel) -> Catalogue:
        """Return items with their vectors by a model."""
        return cls(items.ids, items.identities, items.vectors(model))


def catalogue_of_files(model: SavedModel, patterns: Sequence[str]) -> Catalogue:
    """Return the catalogue of the files that match, in the order of rows; raises as `items_of_files`."""
    return Catalogue.of(items_of_files(model, patterns), model)


def catalogue_of_rows(model: SavedModel, spans: Iterable[Span]) -> Catalogue:
    """Return the catalogue of the items in rows of the job's data; raises as `items_of_rows`."""
    return Catalogue.of(items_of_rows(model, spans), model)


def items_of_files(model: SavedModel, patterns: Sequence[str]) -> Items:
    """Return the items of the files that match, in the order of their rows.

    The files have the job's format and one row for each item, with the columns of `model.item`; others are
    not read. Memory is bounded by the items. Raises DataError for files that cannot be used, a row that
    cannot be read, an id that is missing, or there twice, and for a model without towers.
    """
    require_towers(model)
    job, name = model.job, model.job.model.item[0]
    schema = input_schema(job, model.id_classes, only=job.model.item)
    if not schema.data.columns[name].of_kind.in_file:
        raise DataError(
            f"the items' id {name!r} is made of other columns, so no file has it",
            where="model.item",
            remedy="name a column of files first, or take the items of the training part",
        )
    source = schema.inputs.source_of(name)
    rules = TextRules(tuple(schema.data.missing), schema.data.strip, schema.data.decimal)
    identity, seen = ItemIds(job), _Places()
    ids: list[pa.Array] = []
    identities: list[Int64Array] = []
    examples: list[Examples] = []
    for rows in _rows_of(patterns, schema, source):
        if rows.why:
            first = min(rows.why)
            raise _refused(rows, first, f"{rows.why[first]}, and such an item cannot be found")
        column = rules.clean(rows.kept[source])
        if (missing := null_mask(column)).any():
            raise _refused(rows, int(np.flatnonzero(missing)[0]), f"the item has no id ({source})")
        seen.require_new(column, rows)
        ids.append(column)
        identities.append(identity.of(rows.examples.rows, rows.examples.keys))
        examples.append(rows.examples)
    if not seen.count:
        raise DataError("has no items", where=", ".join(patterns), remedy=_REMEDY)
    whole = pa.concat_arrays([each.cast(ids[0].type) for each in ids])
    return Items(whole, np.concatenate(identities), examples)


def items_of_rows(model: SavedModel, spans: Iterable[Span]) -> Items:
    """Return the items in rows of the job's data, such as its training part, each with its first row.

    Malformed rows are skipped; `data.max_bad_rows` limits them. Ids that share a row of a hashed table are
    one item. Memory is bounded by the items. Raises DataError for files that cannot be read, or without a
    row, and for a model without towers.
    """
    require_towers(model)
    identity, seen, kept = ItemIds(model.job), Identities(), []
    for examples in examples_of(model, spans):
        found = identity.of(examples.rows, examples.keys)
        if (first := seen.add(found)).any():
            kept.append(examples.take(np.flatnonzero(first)))
    if not kept:
        raise DataError("the training part has no row", where="data.path", remedy="give files with rows")
    return Items(None, np.concatenate([identity.of(part.rows, part.keys) for part in kept]), kept)


def examples_of(model: SavedModel, spans: Iterable[Span]) -> Iterator[Examples]:
    """Yield the good rows of spans of the job's data, in order; raises DataError as `JobInput.chunks`."""
    source, bad_rows = JobInput(model.job, has_begun=True), BadRows(model.job.data.max_bad_rows)
    return (chunk.examples for span in spans for chunk in source.chunks(span, bad_rows))


class Identities:
    """A set of int64, in 8 bytes each and for a moment twice as many."""

    def __init__(self) -> None:
        self._known = self._recent = np.zeros(0, np.int64)

    def add(self, values: Int64Array) -> Mask:
        """Add values, and return which of them are new, and the first of their kind: bool [n]."""
        found, first = np.unique(values, return_index=True)
        new = ~(_is_in(found, self._known) | _is_in(found, self._recent))
        mask = np.zeros(len(values), np.bool_)
        mask[first[new]] = True
        self._recent = np.sort(np.concatenate([self._recent, found[new]]))
        # So that values are moved a few times each, whatever their number.
        if len(self._recent) > len(self._known) // 4:
            self._known = np.sort(np.concatenate([self._known, self._recent]))
            self._recent = self._recent[:0]
        return mask


def _is_in(values: Int64Array, known: Int64Array) -> Mask:
    """Return which values are in a sorted array."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: Mask = known[places] == values
    return found


class _Places:
    """Where each id of a file of items was, so that a second row with it is told."""

    def __init__(self) -> None:
        self._ids: dict[object, tuple[str, int]] = {}

    @property
    def count(self) -> int:
        return len(self._ids)

    def require_new(self, column: pa.Array, rows: InputRows) -> None:
        """Note the ids of rows; raises DataError for one that was there before."""
        for place, value in enumerate(column.to_pylist()):
            where = (rows.path, int(rows.numbers[place]))
            path, number = self._ids.setdefault(value, where)
            if (path, number) != where:
                raise _refused(rows, place, f"has the item {value!r}, as row {number} of {path} has")


def _rows_of(patterns: Sequence[str], schema: InputSchema, source: str) -> Iterator[InputRows]:
    data = schema.data
    spans = plan_spans(patterns, data.format, data.span_bytes, kafka=data.kafka)
    return (rows for span in spans for rows in read_input(span, schema, [source]))


def _refused(rows: InputRows, place: int, what: str) -> DataError:
    return DataError(what, where=f"{rows.path}:{rows.numbers[place]}", remedy=_REMEDY)
