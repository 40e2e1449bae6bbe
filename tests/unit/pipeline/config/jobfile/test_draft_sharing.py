"""Questions of a drafted job about columns that may be ids of the same things."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.draft.draft import draft_job
from shadowsync.pipeline.jobfile.load import load_job

ROWS = 3000
Value = Callable[[random.Random], Any]


def one(first: str = "i") -> Value:
    return lambda draw: f"{first}{int(draw.paretovariate(0.7)) % 400}"


def several(first: str = "i") -> Value:
    return lambda draw: "|".join(one(first)(draw) for _ in range(draw.randrange(6)))


def drafted(tmp_path: Path, columns: dict[str, Value], *, parquet: bool = False) -> tuple[str, Path]:
    draw = random.Random(1)
    values = {name: [value(draw) for _ in range(ROWS)] for name, value in columns.items()}
    frame = pl.DataFrame({**values, "clicked": [draw.randrange(2) for _ in range(ROWS)]})
    file = tmp_path / ("log.parquet" if parquet else "log.csv")
    (frame.write_parquet if parquet else frame.write_csv)(file)
    return draft_job(str(file), tmp_path, name="mine"), tmp_path / "job.toml"


def answered(text: str, job: Path) -> Job:
    """The job with what the question about a table proposes."""
    lines = text.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "should share a table" in line)
    line = lines[at + 1].removeprefix("# ")
    name = line.partition(" = ")[0]
    kept = "\n".join(
        [*(one for one in lines[:at] if not one.startswith(f"{name} = ")), line, *lines[at + 2 :]]
    )
    kept = re.sub(rf"\[tables\.{name}\]\n(?:\w+ = .*\n)+", "", kept + "\n")
    owner, given = re.findall(r"\[tables\.(\w+)\] (?:kind = \"growing\" and )?rows = (\d+),", lines[at])[0]
    kept = re.sub(rf"(\[tables\.{owner}\]\nrows = )\d+", rf"\g<1>{given}", kept)
    job.write_text(kept, encoding="utf-8")
    return load_job(job)


@pytest.mark.parametrize("parquet", [False, True])
def test_a_list_of_the_ids_of_another_column_may_share_its_table(tmp_path: Path, parquet: bool) -> None:
    columns: dict[str, Value] = {"user": one("u"), "history": several(), "item": one()}
    text, file = drafted(tmp_path, columns, parquet=parquet)
    (question,) = (line for line in text.splitlines() if "should share a table" in line)
    assert re.search(
        r"QUESTION: history: 9\d% of its values are ids of item, and 9\d% of the values", question
    )
    job = answered(text, file)
    assert [table.name for table in job.tables] == ["user", "item"]
    assert [column.table.name for column in job.embedded_columns] == ["user", "item", "item"]
    # With the table of its own left in, the job is refused by name.
    kept = file.read_text("utf-8") + "[tables.history]\nrows = 5\n"
    file.write_text(kept, encoding="utf-8")
    with pytest.raises(
        JobFileError, match=r"tables.history: there is no table of this name; the ids of column"
    ):
        load_job(file)


@pytest.mark.parametrize(
    "columns",
    [
        {"item": one("a"), "history": several("b")},
        {"item": lambda draw: draw.choice("abcdefgh"), "other": lambda draw: draw.choice("abcdefgh")},
        # Of the other only a few are among these.
        {"item": lambda draw: f"i{draw.randrange(100)}", "other": lambda draw: f"i{draw.randrange(400)}"},
    ],
    ids=["other ids", "few values", "one way only"],
)
def test_other_columns_are_not_asked_about(tmp_path: Path, columns: dict[str, Value]) -> None:
    text, _ = drafted(tmp_path, columns)
    assert "should share" not in text


def test_texts_and_integers_cannot_share_a_table(tmp_path: Path) -> None:
    numbers: dict[str, Value] = {
        "item_id": lambda draw: draw.randrange(10**9, 10**9 + 300),
        "seen_id": lambda draw: str(draw.randrange(10**9, 10**9 + 300)),
    }
    text, _ = drafted(tmp_path, numbers, parquet=True)
    assert "should share" not in text
    # In a text file both are texts.
    text, _ = drafted(tmp_path, numbers)
    assert "should share" in text


def test_ids_that_are_not_utf_8_may_share_a_table(tmp_path: Path) -> None:
    def raw(draw: random.Random) -> bytes:
        return b"\xff%d" % (int(draw.paretovariate(0.7)) % 400)

    text, file = drafted(tmp_path, {"item": raw, "other": raw}, parquet=True)
    assert "QUESTION: other: 9" in text
    assert [table.name for table in answered(text, file).tables] == ["item"]
