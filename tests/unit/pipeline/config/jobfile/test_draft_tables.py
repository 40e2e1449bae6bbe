"""Tables of drafted jobs: no two values share a row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.shared_rows import SharedRowsMeter
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.draft import tables as draft_tables
from shadowsync.pipeline.jobfile.draft.entry import DraftColumn, DraftTable
from shadowsync.pipeline.jobfile.draft.sample import InputSample
from shadowsync.pipeline.jobfile.draft.tables import draft_table, table_lines, within_memory
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import draft

ROWS = 6000


def frame() -> pl.DataFrame:
    draw = random.Random(1)
    return pl.DataFrame(
        {
            "weather": [draw.choice(["", "rain, light", 'a "storm"', *"abcdefg"]) for _ in range(ROWS)],
            "city": [f"city {draw.randrange(300)}" for _ in range(ROWS)],
            "zip": [draw.choice([None, *range(1000, 1200)]) for _ in range(ROWS)],
            "user": [f"u{draw.randrange(1500)}" for _ in range(ROWS)],
            "tags": ["|".join(draw.sample("abcdefgh", draw.randrange(4))) for _ in range(ROWS)],
            "item_id": [draw.randrange(2000) for _ in range(ROWS)],
            "clicked": [draw.randrange(2) for _ in range(ROWS)],
        }
    )


def sharing(job: Job) -> dict[str, float]:
    """What the readers of a job count."""
    meter = SharedRowsMeter(job.hashed_tables, frozenset({"tags"}))
    source = JobInput(job, meter)
    for span in source.plan(job.data.path):
        for _ in source.chunks(span, BadRows(0)):
            pass
    return meter.counts()


@pytest.mark.parametrize("kind", ["csv", "blanks", "parquet", "categories"])
def test_no_value_shares_its_row(tmp_path: Path, kind: str) -> None:
    file = tmp_path / ("log.parquet" if kind in ("parquet", "categories") else "log.csv")
    data = frame()
    if kind == "csv":
        data.write_csv(file)
    elif kind == "blanks":
        file.write_text(data.drop("weather").write_csv(separator=",").replace(",", ", "))
    elif kind == "parquet":
        data.write_parquet(file)
    else:
        data.with_columns(pl.col("city").cast(pl.Categorical)).write_parquet(file)
    text, job = draft(file)
    hashed = {"city", "zip", "tags"} | ({"weather"} if kind != "blanks" else set())
    assert set(job.hashed_tables) == hashed
    assert {table.name for table in job.tables if table.growth is not None} == {"user", "item_id"}
    assert all(job.hashed_tables[name] >= 32 * count for name, count in (("city", 300), ("tags", 8)))
    assert "# none of the 300 values shares its row with another" in text
    counts = sharing(job)
    assert counts["sharing_seen"] >= ROWS
    assert {name: counts[f"shared_rows/{name}"] for name in hashed} == dict.fromkeys(hashed, 0.0)
    # The control: tables with twice as many rows as values.
    sizes = {"city": 512, "zip": 512, "weather": 16, "tags": 16}
    settings = [f"tables.{name}.rows={rows}" for name, rows in sizes.items() if name in hashed]
    small = load_job(tmp_path / "job.toml", settings)
    assert sharing(small)["shared_rows/city"] > 0.2


def sample_of(values: list[Any], rows: int, name: str = "id") -> InputSample:
    data = pl.DataFrame({name: values})
    return InputSample("log.csv", "csv", "", True, "utf-8", data, rows, rows == len(values), 1)


def test_of_a_part_of_the_rows_more_values_are_expected_where_most_came_once() -> None:
    draw = random.Random(1)
    closed = [f"v{draw.randrange(2000)}" for _ in range(50_000)]
    once = [f"v{number}" for number in range(1000)]
    open_, seen = sample_of(once, 10_000), sample_of(closed, 50_000_000)
    assert draft_table("id", open_.frame["id"], open_) == DraftTable(32_768, growing=True, ids=10_000)
    assert draft_table("id", seen.frame["id"], seen) == DraftTable(4096, growing=True, ids=2000)
    whole = sample_of(once, 1000)
    assert draft_table("id", whole.frame["id"], whole).ids == 1000
    # Few values so far, and nearly each row brings another.
    few = sample_of(once[:300], 1_000_000)
    assert draft_table("id", few.frame["id"], few).growing
    huge = sample_of(once, 10**9)
    table = draft_table("id", huge.frame["id"], huge)
    assert table.rows == draft_tables.LARGEST_TABLE
    assert "about 1,000,000,000 ids are expected" in table_lines(table)[1]


def test_large_tables_are_halved_until_all_fit() -> None:
    def column(name: str, rows: int, *, growing: bool = True) -> DraftColumn:
        return DraftColumn(name, "categorical", "", "", DraftTable(rows, growing, rows))

    given = [*(column(name, 1 << 22) for name in "abc"), column("d", 300, growing=False)]
    given.append(DraftColumn("e", "dense", "", ""))
    tables = [one.table for one in within_memory(given)]
    rows = [table.rows for table in tables if table is not None]
    assert rows == [1 << 21, 1 << 21, 1 << 22, 300]
    assert tables[4] is None
    assert "lose their row" in table_lines(tables[0])[1]  # type: ignore[arg-type]
    assert within_memory(given[2:]) == given[2:]
