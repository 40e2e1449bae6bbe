"""Reading a file of any size takes bounded memory: little is read ahead, and few rows are held."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.files import text
from shadowsync.pipeline.data.files.paths import open_raw
from shadowsync.pipeline.data.files.text import BLOCK_BYTES
from shadowsync.pipeline.data.formats import parquet
from shadowsync.pipeline.data.schema import Examples, FeatureShape
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.tests.support.data.schemas import schema_job
from shadowsync.tests.support.data.span_batches import cut_batches

BATCH, WINDOW = 256, 1024
ROWS = 20_000
SHAPE = FeatureShape(2, 3, (1000,) * 3)


class WatchedFile:
    """A file that notes how many bytes each read got."""

    def __init__(self, file: Any, reads: list[int]) -> None:
        self._file, self._reads = file, reads

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self._reads.append(len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        count = int(self._file.readinto(buffer))
        self._reads.append(count)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of a file, by text and Parquet readers."""
    found: list[int] = []

    @contextmanager
    def watched(path: str, *, forward: bool = False) -> Iterator[Any]:
        with open_raw(path, forward=forward) as file:
            yield WatchedFile(file, found)

    monkeypatch.setattr(text, "open_raw", watched)
    monkeypatch.setattr(parquet, "open_for_arrow", watched)
    return found


@pytest.fixture(autouse=True)
def nothing_but_what_a_test_makes() -> None:
    """Leave earlier objects out of `gc.get_objects`, which then takes a hundredth of the time."""
    gc.collect()
    gc.freeze()


@dataclass
class Held:
    """What was held at most while batches were made.

    Attributes:
        rows: of all batches.
        bytes_ahead: read, less those of the rows that had come out.
        rows_held: rows of chunks and pieces that something referred to; views count, too.
    """

    rows: int = 0
    bytes_ahead: float = 0.0
    rows_held: int = 0


def held_by(batches: Iterable[Batch], reads: list[int], row_bytes: float, skipped_rows: int = 0) -> Held:
    """Reads to the end; `skipped_rows` of the file come before the first batch."""
    found, others = Held(), _rows_there()
    for batch in batches:
        found.rows += len(batch)
        found.bytes_ahead = max(found.bytes_ahead, sum(reads) - (skipped_rows + found.rows) * row_bytes)
        found.rows_held = max(found.rows_held, _rows_there() - others)
    return found


def _rows_there() -> int:
    return sum(len(one) for one in gc.get_objects() if isinstance(one, Examples))


def of_span(path: Path, data_format: str, window: int, reads: list[int]) -> Held:
    """Reads a file as one span."""
    (span,) = plan_spans([str(path)], data_format, 1 << 40, SHAPE)
    del reads[:]
    batches = cut_batches(span, SHAPE, data_format=data_format, batch=BATCH, window=window)
    return held_by(batches, reads, path.stat().st_size / ROWS)


@pytest.fixture
def written(tmp_path: Path, lines: Callable[..., list[str]]) -> Callable[[str], Path]:
    """Writes ROWS examples of a kilobyte or more each, in one piece."""

    def write(data_format: str) -> Path:
        path = tmp_path / f"a.{data_format}"
        if data_format == "criteo_tsv":
            block = "\n".join(line + "x" * 1000 for line in lines(1000)) + "\n"
            path.write_text(block * (ROWS // 1000), encoding="utf-8")
            return path
        columns = list(zip(*(line.split("\t") for line in lines(1000)), strict=True))
        numbers = {
            name: pa.array([int(value or 0) for value in columns[at]])
            for at, name in enumerate(["label", "I1", "I2"])
        }
        ids = {f"C{at - 2}": pa.array([value + "x" * 500 for value in columns[at]]) for at in (3, 4, 5)}
        table = pa.concat_tables([pa.table(numbers | ids)] * (ROWS // 1000))
        pq.write_table(table, path, row_group_size=1 << 30, compression="none", use_dictionary=False)
        assert pq.read_metadata(path).num_row_groups == 1
        return path

    return write


# Of Parquet a page of each of the three columns of ids, and the rows that are decoded at once.
AT_ONCE_BYTES = {"criteo_tsv": BLOCK_BYTES, "parquet": 8 << 20}


@pytest.mark.parametrize("data_format", ["criteo_tsv", "parquet"])
def test_a_window_and_a_block_are_in_memory_and_not_the_file(
    written: Callable[[str], Path], reads: list[int], data_format: str
) -> None:
    """A row group is streamed too, so that its size does not matter."""
    path = written(data_format)
    size, at_once = path.stat().st_size, AT_ONCE_BYTES[data_format]
    row_bytes = size / ROWS
    held = of_span(path, data_format, WINDOW, reads)
    assert held.rows == ROWS
    assert sum(reads) >= size * 0.99
    assert max(reads) <= 2 << 20
    assert held.bytes_ahead <= WINDOW * row_bytes + at_once < size / 2
    assert held.rows_held <= 3 * (WINDOW + at_once / row_bytes) < ROWS
    # The control: a window as large as the file has all of it in memory, which both measures see.
    whole = of_span(path, data_format, 2 * ROWS, reads)
    assert whole.bytes_ahead >= size * 0.9
    assert whole.rows_held >= ROWS * 0.9


def test_csv_of_a_schema_planned_by_time(tmp_path: Path, reads: list[int]) -> None:
    """Sorted input is counted and then streamed, quotes and bags and all; nothing of it piles up."""
    path, text_value = tmp_path / "a.csv", "x" * 1000
    with path.open("w") as file:
        file.write("y,age,user,tags,at,w\n")
        for at in range(ROWS):
            file.write(f'5,{at},"u,{text_value}",a|b|c,{at},1\n')
    size = path.stat().st_size
    job = schema_job(str(path), span_bytes=1 << 40, order="time", split={"progressive": 0.2})
    source, spans = JobInput(job), plan_input(job).train
    assert sum(reads) >= size, "it was counted"
    assert max(reads) <= 2 << 20

    def held(window: int) -> list[Held]:
        found = []
        for span in spans:
            del reads[:]
            batches = source.batches(
                span, epoch=0, seed=1, batch=BATCH, shuffle_window=window, bad_rows=BadRows(0)
            )
            found.append(held_by(batches, reads, size / ROWS, span.first))
        return found

    streamed, whole = held(0), held(2 * ROWS)
    assert sum(one.rows for one in streamed) == ROWS
    assert max(one.bytes_ahead for one in streamed) <= 8 * BLOCK_BYTES < size / 4
    assert max(one.rows_held for one in streamed) < ROWS / 4
    # The control: by a window as large as the file.
    assert max(one.bytes_ahead for one in whole) > size / 2
    assert max(one.rows_held for one in whole) > ROWS / 2
