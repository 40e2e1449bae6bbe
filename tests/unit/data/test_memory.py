"""Reading a file of any size takes a bounded amount of memory, measured from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the VmHWM of Linux")

READ = """
import sys
import polars, pyarrow
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.schema import FeatureShape
from shadowsync.tests.support.cut import cut_batches
from shadowsync.pipeline.data.spans import plan_spans

def peak_mib():
    # Not getrusage: its maximum goes through fork and exec, so it would be that of the test's process.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) >> 10

before = peak_mib()
path, data_format, window = sys.argv[1:]
shape = FeatureShape(2, 3, (1000,) * 3)
rows = 0
for span in plan_spans([path], data_format, 1 << 40, shape):
    for batch in cut_batches(span, epoch=0, seed=1, data_format=data_format, shape=shape, batch=512,
                             shuffle_window=int(window), bad_rows=BadRows(0)):
        rows += len(batch)
assert "torch" not in sys.modules
print(rows, before, peak_mib())
"""


def _read(path: Path, data_format: str) -> tuple[int, int, int]:
    """Of a process that reads the file as one span: rows, peak resident MiB before reading and after."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), data_format, "65536"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, before, after = map(int, done.stdout.split())
    return rows, before, after


def test_text_of_300_mb(tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    """Lines are long so that they are few: it is bytes that must not pile up, and the rows must neither."""
    block = ("\n".join(line + "x" * 1000 for line in lines(1000)) + "\n").encode()
    path = tmp_path / "a.tsv"
    with path.open("wb") as file:
        for _ in range(-(-300_000_000 // len(block))):
            file.write(block)
    rows, before, after = _read(path, "criteo_tsv")
    assert rows * len(block) == path.stat().st_size * 1000
    assert path.stat().st_size > 300_000_000
    assert after - before < 100


def test_parquet_of_one_row_group(tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    """A row group is streamed too, so that its size does not matter."""
    columns = list(zip(*(line.split("\t") for line in lines(1000)), strict=True))
    table = pa.table(
        {
            **{
                name: pa.array([int(value or 0) for value in columns[n]])
                for n, name in enumerate(["label", "I1", "I2"])
            },
            **{f"C{n - 2}": pa.array([value + "x" * 500 for value in columns[n]]) for n in (3, 4, 5)},
        }
    )
    path = tmp_path / "a.parquet"
    repeated = pa.concat_tables([table] * 200)
    pq.write_table(repeated, path, row_group_size=1 << 30, compression="none", use_dictionary=False)
    assert pq.read_metadata(path).num_row_groups == 1
    assert path.stat().st_size > 300_000_000
    rows, before, after = _read(path, "parquet")
    assert rows == 200_000
    assert after - before < 100


def test_the_bound_would_catch_a_file_loaded_whole(tmp_path: Path) -> None:
    """The measuring itself: the same process, having read 300 MB at once, is above the bound."""
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(300_000_000))
    code = (
        READ.split("path, data_format")[0]
        + "data = open(sys.argv[1], 'rb').read(); print(peak_mib() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 250


@pytest.mark.parametrize(
    "name",
    [
        *("data.criteo_tsv", "data.cutter", "data.parquet", "data.spans", "data.batch", "data.records"),
        "input.job_input",
    ],
)
def test_a_reader_needs_no_torch(name: str) -> None:
    code = f"import sys, shadowsync.pipeline.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


READ_SCHEMA = """
import sys
import pyarrow
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.schemas import schema_job

def peak_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) >> 10

job = schema_job(sys.argv[1], span_bytes=1 << 40, order="time", split={"progressive": 0.2})
source = JobInput(job)
before = peak_mib()
rows = 0
for span in plan_input(job).train:
    for batch in source.batches(span, epoch=0, seed=1, batch=512, shuffle_window=0, bad_rows=BadRows(0)):
        rows += len(batch)
print(rows, before, peak_mib())
"""


def test_csv_of_a_schema_planned_by_time(tmp_path: Path) -> None:
    """Sorted input is counted and then streamed, quotes and bags and all; nothing of it piles up."""
    path = tmp_path / "a.csv"
    count, text = 40_000, "x" * 2000
    with path.open("w") as file:
        file.write("y,age,user,tags,at,w\n")
        for at in range(count):
            file.write(f'5,{at},"u,{text}",a|b|c,{at},1\n')
    assert path.stat().st_size > 80_000_000
    done = subprocess.run(
        [sys.executable, "-c", READ_SCHEMA, str(path)], capture_output=True, text=True, check=True
    )
    rows, before, after = map(int, done.stdout.split())
    assert rows == count
    assert after - before < 60
