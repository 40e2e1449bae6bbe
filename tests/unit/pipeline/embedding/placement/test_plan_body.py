"""The plan of the tables as it goes from the coordinator to the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.tables.tables import make_tables

TABLES = make_tables([1000, 3, 50, 200, 7], 16)
PLAN = TablePlan.make(TABLES, 3)


def test_a_plan_comes_as_it_was_sent() -> None:
    body = PLAN.to_body()
    assert TablePlan.from_body(TABLES, 3, body) == PLAN
    body["ranges"].reverse()
    assert TablePlan.from_body(TABLES, 3, body) == PLAN, "the order says nothing"


def with_ranges(change: Any) -> dict[str, Any]:
    body = PLAN.to_body()
    change(body["ranges"])
    return body


def move_a_cut(ranges: list[list[int]]) -> None:
    """Two nodes share a table; one row goes from the one to the other: still a good plan, but another."""
    first = next(r for r in ranges if r[0] == 0 and r[1] == 0)
    second = next(r for r in ranges if r[0] == 0 and r[1] == first[2])
    first[2] += 1
    second[1] += 1


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (None, r"cannot be read \(TypeError"),
        ({"nodes": 3, "digest": ""}, r"cannot be read \(KeyError: 'ranges'"),
        ({**PLAN.to_body(), "ranges": [[1, 2]]}, r"cannot be read \(TypeError"),
        ({**PLAN.to_body(), "nodes": 2}, "is for 2 embedding nodes, but the job has 3"),
        ({**PLAN.to_body(), "digest": "beef"}, "its digest is beef, but this node computes"),
        (with_ranges(lambda ranges: ranges.pop(0)), r"rows 0 to 199 of table C4 are on no node"),
        (with_ranges(move_a_cut), "its digest is"),
    ],
)
def test_a_plan_that_was_changed_is_refused(body: Any, what: str) -> None:
    with pytest.raises(
        ClusterError, match=f"the coordinator's plan of the tables cannot be used: .*{what}.*one version"
    ):
        TablePlan.from_body(TABLES, 3, body)


def test_a_plan_of_other_tables_is_refused() -> None:
    """The same ranges, of tables that are wider: their rows would be laid out alike, and be others."""
    with pytest.raises(ClusterError, match="its digest is"):
        TablePlan.from_body(make_tables([1000, 3, 50, 200, 7], 8), 3, PLAN.to_body())


def test_what_differs_is_said_of_the_first_table() -> None:
    held = [[piece.table, piece.start, piece.stop] for piece in PLAN.pieces_of(1)]
    assert PLAN.difference(1, held) == ""
    other = [[t, start, stop + (t == 0)] for t, start, stop in held]
    said = "it has rows 220 to 590 of table C1, but the plan gives it rows 220 to 589"
    assert PLAN.difference(1, other) == said
    missing = "it has no rows of table C1, but the plan gives it rows 220 to 589"
    assert PLAN.difference(1, held[:1]) == missing
    assert "number 8" in PLAN.difference(1, [*held, [8, 0, 1]])
