"""Writing of generated rows to one file, as Parquet or text in Criteo's format."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .columns import COUNT_COLUMNS, ID_COLUMNS, ClickColumns, ids_of_ranks
from .manifest import DataFormat, LogCompression

_GZIP_LEVEL: Final = 6
_PARQUET_CODEC: Final[dict[LogCompression, str]] = {"none": "none", "gz": "gzip", "zst": "zstd"}

SCHEMA: Final = pa.schema(
    [pa.field("label", pa.int32(), nullable=False)]
    + [pa.field(f"I{number + 1}", pa.int32()) for number in range(len(COUNT_COLUMNS))]
    + [pa.field(f"C{number + 1}", pa.string()) for number in range(len(ID_COLUMNS))]
)


class LogWriter(Protocol):
    """Writer of tables of `SCHEMA`, in the order of the rows."""

    def write(self, table: Any) -> None:
        """Append the rows of a pyarrow.Table; raises OSError."""


class TableMaker:
    """Make a writer's tables from rows.

    The texts of all ids are kept in memory, a few tens of MB.
    """

    def __init__(self, seed: int) -> None:
        self._texts = [
            _hexadecimal(ids_of_ranks(seed, place, np.arange(column.cardinality, dtype=np.int32)))
            for place, column in enumerate(ID_COLUMNS)
        ]

    def table(self, labels: NDArray[np.bool_], rows: ClickColumns) -> Any:
        """Return a pyarrow.Table of `SCHEMA` with one row for each label.

        Missing values are nulls.
        """
        arrays = [pa.array(labels.astype(np.int32))]
        for counts in rows.counts:
            missing = np.isnan(counts)
            arrays.append(pa.array(np.where(missing, 0.0, counts).astype(np.int32), mask=missing))
        for texts, ranks in zip(self._texts, rows.ranks, strict=True):
            arrays.append(texts.take(pa.array(ranks, mask=ranks < 0)))
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def data_file_suffix(data_format: DataFormat, compression: LogCompression) -> str:
    """Return the suffix of a data file's name, such as ".tsv.gz".

    Parquet compresses inside the file, so its suffix is always ".parquet".
    """
    if data_format == "parquet":
        return ".parquet"
    return ".tsv" if compression == "none" else f".tsv.{compression}"


@contextmanager
def open_writer(path: Path, data_format: DataFormat, compression: LogCompression) -> Iterator[LogWriter]:
    """Open a writer of a new file, which is complete when the context ends.

    Each table becomes one row group of Parquet. The file has no times or names, so its bytes depend only on
    the tables. Memory: about three tables. Raises OSError.
    """
    if data_format == "parquet":
        codec = _PARQUET_CODEC[compression]
        # A name with a colon would be taken for a URL.
        with path.open("wb") as file, pq.ParquetWriter(file, SCHEMA, compression=codec) as writer:
            yield _ParquetLog(writer)
    elif compression == "zst":
        with path.open("wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
            yield _TextLog(stream)
    elif compression == "gz":
        with (
            path.open("wb") as file,
            gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_GZIP_LEVEL, mtime=0) as stream,
        ):
            yield _TextLog(stream)
    else:
        with path.open("wb") as file:
            yield _TextLog(file)


def _hexadecimal(ids: NDArray[np.uint32]) -> Any:
    """Return a pyarrow.StringArray of 8 digits for each id."""
    digits = ids.astype(">u4").tobytes().hex().encode("ascii")
    offsets = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))


class _ParquetLog:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))


class _TextLog:
    def __init__(self, stream: IO[bytes] | Any) -> None:
        self._stream = stream

    def write(self, table: Any) -> None:
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        text = frame.write_csv(include_header=False, separator="\t", null_value="", quote_style="never")
        self._stream.write(text.encode("ascii"))
