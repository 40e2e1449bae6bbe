"""Which columns of a part have dictionaries, and that the rows are the same either way."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.batch import Bags
from shadowsync.pipeline.data.formats.records import RecordChunk
from shadowsync.pipeline.data.prepared.manifest import PreparedColumn
from shadowsync.pipeline.data.schema import Examples
from shadowsync.pipeline.prepare import part_writer
from shadowsync.pipeline.prepare.part_writer import PartWriter

ROWS = 5000
COLUMNS = [
    PreparedColumn(name="label", kind="label", source="label", stored="float32"),
    PreparedColumn(name="counted", kind="dense", source="counted", stored="float32"),
    PreparedColumn(name="measured", kind="dense", source="measured", stored="float32"),
    PreparedColumn(name="country", kind="categorical", source="country", stored="int32", table_rows=100),
    PreparedColumn(name="user", kind="categorical", source="user", stored="int32", table_rows=1 << 30),
    PreparedColumn(name="tags", kind="multi_hot", source="tags", stored="list<int32>", table_rows=100),
]


def _chunk() -> RecordChunk:
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 5, (1, ROWS)).astype(np.int32)
    return RecordChunk(
        Examples(
            rng.integers(0, 2, ROWS).astype(np.float32),
            np.stack([rng.integers(0, 9, ROWS), rng.random(ROWS)], axis=1).astype(np.float32),
            np.stack([rng.integers(0, 100, ROWS), rng.permutation(ROWS)]).astype(np.int32),
            bags=Bags(rng.integers(0, 100, int(lengths.sum())).astype(np.int32), lengths),
        ),
        np.zeros(0),
    )


def test_dictionaries_are_where_values_repeat(tmp_path: Path) -> None:
    """Elsewhere one would be more bytes than the values, each of which is read and its CRC compared."""
    path, chunk = tmp_path / "part.parquet", _chunk()
    writer = PartWriter(path, COLUMNS, "digest")
    writer.write(chunk)
    writer.close()
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    with_one = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert with_one == {"label", "counted", "country", "tags.list.element"}
    plain = next(column for column in columns if column.path_in_schema == "user")
    assert plain.total_uncompressed_size < 4.2 * ROWS
    table = pq.read_table(path, page_checksum_verification=True)
    np.testing.assert_array_equal(table["measured"].to_numpy(), chunk.examples.dense[:, 1])
    np.testing.assert_array_equal(table["user"].to_numpy(), chunk.examples.rows[1])
    flat = table["tags"].combine_chunks().flatten().to_numpy()
    np.testing.assert_array_equal(flat, chunk.examples.bags.rows)


def test_a_part_without_rows_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    PartWriter(path, COLUMNS, "digest").close()
    assert pq.read_metadata(path).num_rows == 0


def test_a_discarded_part_is_written_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's writer writes the end when it is collected: to a file that is closed by then."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: unraisable.append(event.exc_value))
    monkeypatch.setattr(part_writer, "ROW_GROUP_ROWS", ROWS)
    path = tmp_path / "part.parquet"
    writer = PartWriter(path, COLUMNS, "digest")
    writer.write(_chunk())
    assert writer.row_groups == 1
    writer.discard()
    del writer
    assert unraisable == []
    with pytest.raises(pa.ArrowInvalid):
        pq.read_metadata(path)
