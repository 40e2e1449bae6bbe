"""The split of the tables over nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.errors import JobFileError

TABLES = st.lists(
    st.one_of(st.integers(1, 5), st.integers(1, 400), st.sampled_from([1000, 3000])), min_size=1, max_size=12
)


@given(TABLES, st.integers(1, 9))
def test_every_row_has_one_place_and_every_place_one_row(table_rows: list[int], nodes: int) -> None:
    if sum(table_rows) < nodes:
        return
    plan = TablePlan.make(table_rows, 4, nodes)
    seen = [np.zeros(rows, np.int64) for rows in table_rows]
    used = [np.zeros(plan.rows_of(node), np.int64) for node in range(nodes)]
    for piece in plan.pieces:
        seen[piece.table][piece.start : piece.stop] += 1
        used[piece.node][piece.offset : piece.offset + len(piece)] += 1
    assert all((count == 1).all() for count in seen)
    assert all((count == 1).all() for count in used)
    assert all(len(count) > 0 for count in used)


@given(TABLES, st.integers(1, 9))
def test_only_large_tables_are_cut_and_seldom(table_rows: list[int], nodes: int) -> None:
    if sum(table_rows) < nodes:
        return
    plan = TablePlan.make(table_rows, 4, nodes)
    for table, rows in enumerate(table_rows):
        if rows * nodes <= sum(table_rows):
            assert sum(piece.table == table for piece in plan.pieces) == 1
    assert len(plan.pieces) <= len(table_rows) + nodes - 1
    for node in range(nodes):
        pieces = plan.pieces_of(node)
        assert len({piece.table for piece in pieces}) == len(pieces)
        whole = [plan.is_whole(piece) for piece in pieces]
        assert whole == sorted(whole, reverse=True)
        for kind in (True, False):
            tables = [piece.table for piece in pieces if plan.is_whole(piece) is kind]
            assert tables == sorted(tables)


def test_one_huge_table_is_cut_evenly() -> None:
    plan = TablePlan.make([1_000_000], 16, 3)
    assert [plan.rows_of(node) for node in range(3)] == [333_334, 333_333, 333_333]


def test_a_huge_table_fills_up_what_the_whole_ones_leave() -> None:
    plan = TablePlan.make([900, 40, 30, 20, 10], 16, 4)
    assert [plan.rows_of(node) for node in range(4)] == [250, 250, 250, 250]


def test_equal_tables_are_not_cut_and_are_shared_equally() -> None:
    plan = TablePlan.make([100_000] * 26, 16, 2)
    assert len(plan.pieces) == 26
    assert [len(plan.pieces_of(node)) for node in range(2)] == [13, 13]


def test_tiny_tables_are_balanced_by_number_as_well_as_by_rows() -> None:
    # By rows alone, all the tiny tables would join the lightest node, which then answers most lookups.
    plan = TablePlan.make([1000, 1000, 991] + [1] * 9, 16, 3)
    assert [len(plan.pieces_of(node)) for node in range(3)] == [4, 4, 4]


def test_the_plan_is_pinned() -> None:
    # Nodes of different releases in one job, or a checkpoint of an older one, rest on this.
    plan = TablePlan.make([1000, 3, 50, 200, 7], 16, 3)
    assert [(p.table, p.start, p.stop, p.node, p.offset) for p in plan.pieces] == [
        (3, 0, 200, 0, 0),
        (0, 0, 220, 0, 200),
        (2, 0, 50, 1, 0),
        (0, 220, 590, 1, 50),
        (1, 0, 3, 2, 0),
        (4, 0, 7, 2, 3),
        (0, 590, 1000, 2, 10),
    ]
    assert plan.digest == TablePlan.make((1000, 3, 50, 200, 7), 16, 3).digest
    others = [TablePlan.make([1000, 3, 50, 200, 7], 8, 3), TablePlan.make([1000, 3, 50, 200, 7], 16, 2)]
    assert plan.digest not in [other.digest for other in others]


def test_fewer_rows_than_nodes_is_an_error_that_names_the_key() -> None:
    assert len(TablePlan.make([1, 2], 4, 3).pieces) == 3
    with pytest.raises(JobFileError, match=r"^embedding\.nodes: 4 nodes for 3 rows .*give at most 3$"):
        TablePlan.make([1, 2], 4, 4)


def test_more_rows_than_an_int32_can_number_is_an_error() -> None:
    with pytest.raises(JobFileError, match=r"^embedding\.nodes: 3,000,000,000 rows for one node"):
        TablePlan.make([2**31 - 1, 3_000_000_000 - 2**31 + 1], 4, 1)
    assert TablePlan.make([1_500_000_000] * 2, 4, 2).rows_of(0) == 1_500_000_000


@pytest.mark.parametrize(("rows", "dim", "nodes"), [([], 4, 1), ([0], 4, 1), ([1], 0, 1), ([1], 4, 0)])
def test_nonsense_is_refused(rows: list[int], dim: int, nodes: int) -> None:
    with pytest.raises(ValueError, match="no plan for"):
        TablePlan.make(rows, dim, nodes)
