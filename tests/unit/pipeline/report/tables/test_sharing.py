"""Ids that share rows, in a report."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.report.tables.sharing import (
    SharedRows,
    shared_rows,
    sharing_section,
    sharing_warnings,
)

ROWS = {"user": 64, "item": 8, "day": 32}


def counts(seen: int, examples: float, item: float) -> dict[str, float]:
    shares = {"shared_rows/user": 0.01, "shared_rows/item": item, "shared_rows/day": 0.0}
    return {"sharing_seen": seen, "sharing_examples": examples, **shares}


def test_readers_count_by_what_they_read() -> None:
    # One has read nothing yet.
    found = shared_rows(ROWS, [counts(300, 0.4, 0.5), counts(100, 0.8, 0.1), {"read_examples": 0}])
    assert found.examples == pytest.approx(0.5)
    assert found.tables == pytest.approx({"user": 0.01, "item": 0.4, "day": 0.0})


def test_without_a_hashed_table_none_share_and_without_counts_it_is_unknown() -> None:
    assert shared_rows({}, []) == SharedRows(examples=0.0)
    unknown = shared_rows(ROWS, [{}])
    assert unknown == SharedRows(examples=None)
    assert sharing_warnings(unknown, ROWS) == []
    assert "Not measured" in "\n".join(sharing_section(unknown)[0])
    assert "None: each id" in "\n".join(sharing_section(SharedRows(examples=0.0))[0])
    assert sharing_section(None) == []


def test_above_a_few_per_cent_the_worst_tables_are_named_with_the_remedy() -> None:
    (warning,) = sharing_warnings(SharedRows(examples=0.5, tables={"day": 0.04, "item": 0.374}), ROWS)
    assert "37.4% of item (8 rows), 4.0% of day (32 rows), counted by example" in warning
    assert 'Set tables.item.kind = "growing"' in warning
    few = SharedRows(examples=0.03, tables={"user": 0.02, "item": 0.01, "day": 0.0})
    assert sharing_warnings(few, ROWS) == []
    many = {f"t{number}": 0.1 * number for number in range(1, 6)}
    (warning,) = sharing_warnings(SharedRows(examples=1.0, tables=many), dict.fromkeys(many, 9))
    assert "t5 (9 rows), 40.0% of t4 (9 rows), 30.0% of t3 (9 rows), and 2 more tables" in warning
    page = "\n".join(sharing_section(SharedRows(examples=0.5, tables={"day": 0.04, "item": 0.374}))[0])
    assert page.index("37.4%") < page.index("4.0%")
