"""Writing of one part: a Parquet file of model-ready rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..data.batch import Bags
from ..data.formats.records import RecordChunk
from ..data.prepared.manifest import PreparedColumn
from ..data.prepared.part_reader import ROW_GROUP_ROWS, STORED_TYPES, part_schema
from ..data.schema import Examples


class PartWriter:
    """Write one part to `path`; used by one thread.

    The bytes of the file depend on the rows and the schema, not on the chunks. A column gets a dictionary if
    its values repeat in the first row group. Nothing is compressed: files have half the size of the text, and
    are read several times as fast as compressed pages. Each page has a CRC. Memory: one row group of
    ROW_GROUP_ROWS rows. Methods raise OSError.

    Attributes:
        rows: number of rows written.
        row_groups: number of complete row groups; after `close` all of the file.
    """

    def __init__(self, path: Path, columns: Sequence[PreparedColumn], order_digest: str) -> None:
        self._columns = columns
        self._schema = part_schema(columns, order_digest)
        # Opened here, because Arrow takes some file names for URLs.
        self._file = path.open("wb")
        self._writer: Any = None
        self._pending: list[Any] = []
        self._pending_rows = 0
        self.rows = 0
        self.row_groups = 0

    def write(self, chunk: RecordChunk) -> None:
        """Append rows."""
        count = len(chunk.examples)
        if not count:
            return
        self._pending.append(self._table(chunk))
        self._pending_rows += count
        self.rows += count
        while self._pending_rows >= ROW_GROUP_ROWS:
            self._write_group(ROW_GROUP_ROWS)

    def close(self) -> None:
        """Write pending rows and the end of the file, and close it.

        After an error or an interrupt, also of this method, call `discard`.
        """
        if self._pending_rows:
            self._write_group(self._pending_rows)
        if self._writer is None:
            self._open([])
        self._writer.close()
        self._file.close()

    def discard(self) -> None:
        """Close the file as it is, without its end."""
        if self._writer is not None:
            # Otherwise the writer's finalizer would write the end to a closed file.
            self._writer.is_open = False
        self._file.close()

    def _write_group(self, rows: int) -> None:
        table = pa.concat_tables(self._pending)
        group = table.slice(0, rows).combine_chunks()
        if self._writer is None:
            self._open([name for name in group.column_names if _repeats(group.column(name))])
        self._writer.write_table(group, row_group_size=rows)
        self._pending_rows -= rows
        # A copy, so that a few rows do not keep the whole group in memory.
        self._pending = [table.slice(rows).combine_chunks()] if self._pending_rows else []
        self.row_groups += 1

    def _open(self, dictionaries: list[str]) -> None:
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="none",
            # Parquet names a list column by its elements.
            use_dictionary=[
                f"{name}.list.element" if pa.types.is_list(self._schema.field(name).type) else name
                for name in dictionaries
            ],
            write_page_checksum=True,
            write_statistics=False,
        )

    def _table(self, chunk: RecordChunk) -> Any:
        arrays = _arrays_of(chunk, self._columns)
        values = [pa.array(next(arrays[column.kind])) for column in self._columns]
        return pa.Table.from_arrays(values, schema=self._schema)


def _arrays_of(chunk: RecordChunk, columns: Sequence[PreparedColumn]) -> dict[str, Iterator[Any]]:
    """Return the arrays of each kind of stored columns, in the order of the columns."""
    examples = chunk.examples
    bags = [column for column in columns if column.kind == "multi_hot"]
    tables = {column.name: table for table, column in enumerate(bags)}
    weighted = [column.name.removesuffix(":weights") for column in columns if column.kind == "item_weights"]
    return {
        "label": iter((examples.labels, *examples.other_labels)),
        "dense": iter(np.ascontiguousarray(examples.dense.T)),
        "categorical": _ids(examples, [column for column in columns if column.kind == "categorical"]),
        "multi_hot": (
            _list(
                examples.bags.keys if column.has_keys else examples.bags.rows,
                examples.bags,
                tables[column.name],
                column.stored,
            )
            for column in bags
        ),
        "item_weights": (_weights(chunk, tables[name]) for name in weighted),
        "timestamp": iter((chunk.times,)),
        "weight": iter((examples.weights,)),
        "group": iter(examples.groups),
    }


def _ids(examples: Examples, columns: Sequence[PreparedColumn]) -> Iterator[NDArray[Any]]:
    keys = iter(examples.keys)
    for column, rows in zip(columns, examples.rows, strict=True):
        yield next(keys) if column.has_keys else rows


def _repeats(column: Any) -> bool:
    """Return whether a dictionary with 2-byte indices saves space."""
    values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    width_bytes = values.type.bit_width // 8
    distinct = pc.count_distinct(values).as_py()
    return bool(distinct * width_bytes + 2 * len(values) <= width_bytes * len(values))


def _weights(chunk: RecordChunk, table: int) -> Any:
    """Return the weights of one table's bags as an Arrow array."""
    bags = chunk.examples.bags
    # A chunk without an id has no weights either.
    values = bags.weights if len(bags.weights) else np.zeros(0, np.float32)
    return _list(values, bags, table, "list<float32>")


def _list(values: NDArray[Any], bags: Bags, table: int, stored: str) -> Any:
    start, lengths = int(bags.lengths[:table].sum(dtype=np.int64)), bags.lengths[table]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    items = pa.array(values[start : start + int(offsets[-1])])
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=STORED_TYPES[stored])
