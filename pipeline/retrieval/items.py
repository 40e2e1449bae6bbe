"""The items of a catalogue, from a file of items or from rows of the job's data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..config.job import Job
from ..data.bad_rows import UnreportedBadRows
from ..data.batches.split_by_id import IdReader
from ..data.columns.fields import TextRules, null_mask
from ..data.formats.parquet import IdClass, id_class
from ..data.schema import Examples
from ..data.span import Span
from ..errors import DataError
from ..input.job_input import JobInput
from ..saved_model.input_rows import InputRows, input_schema, read_files
from ..types import Int64Array, Mask

_REMEDY: Final = "give each item once, in a row with its id"


@dataclass(frozen=True, eq=False)
class Items:
    """The N items of a catalogue, as rows of the job's data; any model of the job has vectors of them.

    Attributes:
        ids: the ids, as the file has them; None where they are only known by hashes.
        identities: int64 [N], what tells items apart, see `ItemReader`.
        examples: the items' rows; what is not of items is missing in them, or of any query.
    """

    ids: pa.Array | None
    identities: Int64Array
    examples: Sequence[Examples]

    def __len__(self) -> int:
        return len(self.identities)


class ItemReader:
    """What tells items apart, from the job's column of their id; as `LossBatch.items`."""

    def __init__(self, job: Job) -> None:
        self._ids = IdReader(job.embedded_columns, job.model.item[0])

    def __call__(self, examples: Examples) -> Int64Array:
        """Return int64 [n]: the hashes of the ids in a growing table, else their rows."""
        return self._ids(examples).view(np.int64)


def items_of_files(job: Job, id_classes: Mapping[str, IdClass], patterns: Sequence[str]) -> Items:
    """Return the items of the files that match, in the order of their rows.

    The files have the job's format and one row for each item, with the columns of `model.item`; others are
    not read. `id_classes` are the types of ids in training, see `SavedModel`. Memory is bounded by the items.
    Raises DataError for files that cannot be used, a row that cannot be read, and an id that is missing, or
    there twice.
    """
    name = job.model.item[0]
    schema = input_schema(job, id_classes, only=job.model.item)
    if not schema.data.columns[name].of_kind.in_file:
        raise DataError(
            f"the items' id {name!r} is made of other columns, so no file has it",
            where="model.item",
            remedy="name a column of files first, or take the items of the training part",
        )
    source = schema.inputs.source_of(name)
    rules = TextRules(tuple(schema.data.missing), schema.data.strip, schema.data.decimal)
    identity, seen = ItemReader(job), _Places()
    ids: list[pa.Array] = []
    identities: list[Int64Array] = []
    examples: list[Examples] = []
    for rows in read_files(patterns, schema, [source]):
        if rows.why:
            first = min(rows.why)
            raise _refused(rows, first, f"{rows.why[first]}, and such an item cannot be found")
        column = rules.clean(rows.kept[source])
        if (missing := null_mask(column)).any():
            raise _refused(rows, int(np.flatnonzero(missing)[0]), f"the item has no id ({source})")
        seen.require_new(column, rows)
        ids.append(column)
        identities.append(identity(rows.examples))
        examples.append(rows.examples)
    if not seen.count:
        raise DataError("has no items", where=", ".join(patterns), remedy=_REMEDY)
    whole = _joined(ids, source, patterns)
    return Items(whole, np.concatenate(identities), examples)


def _joined(ids: Sequence[pa.Array], source: str, patterns: Sequence[str]) -> pa.Array:
    """Return the ids of all files as one array.

    Raises DataError unless all are texts, or integers that fit one type: 7 and "7" may be one item.
    """
    kinds = {each.type for each in ids}
    common: list[pa.DataType] = [ids[0].type]
    if len(kinds) > 1:
        wide = {"text": [pa.large_string()], "integer": [pa.int64(), pa.uint64()], None: []}
        classes = {id_class(kind) for kind in kinds}
        common = wide[classes.pop()] if len(classes) == 1 else []
    for kind in common:
        with suppress(pa.ArrowInvalid):
            return pa.concat_arrays([each.cast(kind) for each in ids])
    raise DataError(
        f"the ids ({source}) do not fit one type: they are {', '.join(sorted(map(str, kinds)))}",
        where=", ".join(patterns),
        remedy="write them in one type in all files",
    )


def items_of_rows(job: Job, spans: Iterable[Span]) -> Items:
    """Return the items in rows of the job's data, such as its training part, each with its first row.

    Malformed rows are skipped, which training reports. Ids that share a row of a hashed table are one item.
    Memory is bounded by the items. Raises DataError for files that cannot be read, or without a row.
    """
    identity, seen, kept = ItemReader(job), Identities(), []
    for examples in examples_of(job, spans):
        if (first := seen.add(identity(examples))).any():
            kept.append(examples.take(np.flatnonzero(first)))
    if not kept:
        raise DataError("the training part has no row", where="data.path", remedy="give files with rows")
    return Items(None, np.concatenate([identity(part) for part in kept]), kept)


def examples_of(job: Job, spans: Iterable[Span]) -> Iterator[Examples]:
    """Yield the good rows of spans of the job's data, in order; raises DataError as `JobInput.chunks`."""
    source, bad_rows = JobInput(job, has_begun=True), UnreportedBadRows()
    return (chunk.examples for span in spans for chunk in source.chunks(span, bad_rows))


class Identities:
    """A set of int64, in 8 bytes each and for a moment twice as many."""

    def __init__(self) -> None:
        self._known = self._recent = np.zeros(0, np.int64)

    def add(self, values: Int64Array) -> Mask:
        """Add values, and return which are new, bool [n]; of equal ones only the first is."""
        distinct, first = np.unique(values, return_index=True)
        new = ~(places_in(self._known, distinct)[1] | places_in(self._recent, distinct)[1])
        mask = np.zeros(len(values), np.bool_)
        mask[first[new]] = True
        self._recent = np.sort(np.concatenate([self._recent, distinct[new]]))
        # So that values are moved a few times each, whatever their number.
        if len(self._recent) > len(self._known) // 4:
            self._known = np.sort(np.concatenate([self._known, self._recent]))
            self._recent = self._recent[:0]
        return mask


def places_in(known: NDArray[Any], values: NDArray[Any]) -> tuple[Int64Array, Mask]:
    """Return where values are in a sorted array, and which are there: int64 [n] and bool [n]."""
    if not len(known):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return places, known[places] == values


class _Places:
    """Where each id of a file of items was, so that a second row with it is told."""

    def __init__(self) -> None:
        self._ids: dict[object, tuple[str, int]] = {}

    @property
    def count(self) -> int:
        return len(self._ids)

    def require_new(self, column: pa.Array, rows: InputRows) -> None:
        """Note the ids of rows; raises DataError for one that was there before."""
        for place, scalar in enumerate(column):
            try:
                value = scalar.as_py()
            except UnicodeDecodeError as error:
                raise _refused(rows, place, "its id is not UTF-8, so no answer can have it") from error
            where = (rows.path, int(rows.numbers[place]))
            path, number = self._ids.setdefault(value, where)
            if (path, number) != where:
                raise _refused(rows, place, f"has the item {value!r}, as row {number} of {path} has")


def _refused(rows: InputRows, place: int, what: str) -> DataError:
    return DataError(what, where=f"{rows.path}:{rows.numbers[place]}", remedy=_REMEDY)
