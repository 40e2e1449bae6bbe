"""The split of the tables over nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.errors import JobFileError
from shadowsync.tests.support.tables.tables import make_table, make_tables

TABLES = st.lists(
    st.one_of(st.integers(1, 5), st.integers(1, 400), st.sampled_from([1000, 3000])), min_size=1, max_size=12
)


@given(TABLES, st.integers(1, 9))
def test_only_large_tables_are_cut_and_seldom(table_rows: list[int], nodes: int) -> None:
    if sum(table_rows) < nodes:
        return
    plan = TablePlan.make(make_tables(table_rows, 4), nodes)
    for table, rows in enumerate(table_rows):
        if rows * nodes <= sum(table_rows):
            assert sum(piece.table == table for piece in plan.pieces) == 1
    assert len(plan.pieces) <= len(table_rows) + nodes - 1
    for node in range(nodes):
        assert plan.rows_of(node) > 0
        pieces = plan.pieces_of(node)
        assert len({piece.table for piece in pieces}) == len(pieces)
        whole = [plan.is_whole(piece) for piece in pieces]
        assert whole == sorted(whole, reverse=True)
        for kind in (True, False):
            tables = [piece.table for piece in pieces if plan.is_whole(piece) is kind]
            assert tables == sorted(tables)


def test_one_huge_table_is_cut_evenly() -> None:
    plan = TablePlan.make(make_tables([1_000_000], 16), 3)
    assert [plan.rows_of(node) for node in range(3)] == [333_334, 333_333, 333_333]


def test_a_huge_table_fills_up_what_the_whole_ones_leave() -> None:
    plan = TablePlan.make(make_tables([900, 40, 30, 20, 10], 16), 4)
    assert [plan.rows_of(node) for node in range(4)] == [250, 250, 250, 250]


def test_equal_tables_are_not_cut_and_are_shared_equally() -> None:
    plan = TablePlan.make(make_tables([100_000] * 26, 16), 2)
    assert len(plan.pieces) == 26
    assert [len(plan.pieces_of(node)) for node in range(2)] == [13, 13]


def test_tiny_tables_are_balanced_by_number_as_well_as_by_rows() -> None:
    # By rows alone, all the tiny tables would join the lightest node, which then answers most lookups.
    plan = TablePlan.make(make_tables([1000, 1000, 991] + [1] * 9, 16), 3)
    assert [len(plan.pieces_of(node)) for node in range(3)] == [4, 4, 4]


def test_the_plan_is_pinned() -> None:
    # Nodes of different releases in one job, or a checkpoint of an older one, rest on this.
    plan = TablePlan.make(make_tables([1000, 3, 50, 200, 7], 16), 3)
    assert [(p.table, p.start, p.stop, p.node, p.offset) for p in plan.pieces] == [
        (3, 0, 200, 0, 0),
        (0, 0, 220, 0, 200),
        (2, 0, 50, 1, 0),
        (0, 220, 590, 1, 50),
        (1, 0, 3, 2, 0),
        (4, 0, 7, 2, 3),
        (0, 590, 1000, 2, 10),
    ]
    assert plan.digest == TablePlan.make(make_tables((1000, 3, 50, 200, 7), 16), 3).digest
    others = [
        TablePlan.make(make_tables([1000, 3, 50, 200, 7], 8), 3),
        TablePlan.make(make_tables([1000, 3, 50, 200, 7], 16), 2),
    ]
    assert plan.digest not in [other.digest for other in others]


def test_fewer_rows_than_nodes_is_an_error_that_names_the_key() -> None:
    assert len(TablePlan.make(make_tables([1, 2], 4), 3).pieces) == 3
    with pytest.raises(
        JobFileError,
        match=r"^embedding\.nodes: 4 nodes are too many: all tables have 3 rows "
        r".*set embedding.nodes to at most 3$",
    ):
        TablePlan.make(make_tables([1, 2], 4), 4)


def test_more_rows_than_an_int32_can_number_is_an_error() -> None:
    with pytest.raises(
        JobFileError, match=r"^embedding\.nodes: one bank of a node would get 3,000,000,000 rows"
    ):
        TablePlan.make(make_tables([2**31 - 1, 3_000_000_000 - 2**31 + 1], 4), 1)
    assert TablePlan.make(make_tables([1_500_000_000] * 2, 4), 2).rows_of(0) == 1_500_000_000


@pytest.mark.parametrize(("rows", "dim", "nodes"), [([], 4, 1), ([0], 4, 1), ([1], 0, 1), ([1], 4, 0)])
def test_nonsense_is_refused(rows: list[int], dim: int, nodes: int) -> None:
    with pytest.raises(ValueError, match="no plan for"):
        TablePlan.make(make_tables(rows, dim), nodes)


MIXED = st.lists(
    st.builds(
        make_table,
        rows=st.one_of(st.integers(1, 5), st.integers(1, 400), st.sampled_from([1000, 3000])),
        dim=st.sampled_from([1, 4, 16]),
        optimizer=st.sampled_from(["sgd", "adagrad"]),
        lr=st.sampled_from([0.1, 0.2]),
    ),
    min_size=1,
    max_size=12,
)


@given(MIXED, st.integers(1, 9))
def test_tables_of_several_banks_are_covered_once(tables: list[TableSettings], nodes: int) -> None:
    if sum(table.rows for table in tables) < nodes:
        return
    plan = TablePlan.make(tables, nodes)
    assert [(b.dim, b.optimizer, b.lr) for b in plan.banks] == list(
        dict.fromkeys((t.dim, t.optimizer, t.lr) for t in tables)
    )
    seen = [np.zeros(table.rows, np.int64) for table in tables]
    for piece in plan.pieces:
        bank, table = plan.banks[piece.bank], tables[piece.table]
        assert (bank.dim, bank.optimizer, bank.lr) == (table.dim, table.optimizer, table.lr)
        seen[piece.table][piece.start : piece.stop] += 1
    assert all((count == 1).all() for count in seen)
    assert len(plan.pieces) <= len(tables) + nodes - 1
    for node in range(nodes):
        for number in range(len(plan.banks)):
            used = np.zeros(plan.bank_rows(node, number), np.int64)
            for piece in plan.pieces_of(node):
                if piece.bank == number:
                    used[piece.offset : piece.offset + len(piece)] += 1
            assert (used == 1).all()


def test_banks_are_balanced_by_what_their_rows_take() -> None:
    # 100 rows of 64 floats and 3,200 of 2: as many floats. By rows alone one node would get nearly all the
    # narrow rows and a few of the wide ones.
    tables = [make_table("wide", 100, 64), make_table("narrow", 3200, 2)]
    plan = TablePlan.make(tables, 4)
    floats = [
        sum(len(piece) * tables[piece.table].dim for piece in plan.pieces_of(node)) for node in range(4)
    ]
    assert floats == [3200] * 4
    # Its state makes a row of the second as large as two of the first.
    tables = [make_table("plain", 300, 8), make_table("stateful", 150, 8, optimizer="adagrad")]
    assert [TablePlan.make(tables, 2).rows_of(node) for node in range(2)] == [300, 150]


def test_the_placement_is_of_rows_and_not_of_how_they_are_trained() -> None:
    tables = make_tables([1000, 3, 50, 200, 7], 16)
    plan = TablePlan.make(tables, 3)
    # A rate of its own makes a bank of its own, and moves no row to another node.
    other = TablePlan.make([*tables[:4], make_table("C5", 7, 16, lr=0.9)], 3)
    assert plan.digest != other.digest
    assert plan.placement_digest == other.placement_digest
    renamed = TablePlan.make([*tables[:4], make_table("C6", 7, 16)], 3)
    assert plan.placement_digest not in (
        renamed.placement_digest,
        TablePlan.make(tables, 2).placement_digest,
        TablePlan.make(tables[:4], 3).placement_digest,
    )


def test_more_banks_than_a_request_can_name_are_an_error() -> None:
    tables = [make_table(f"C{number}", lr=1.0 + number) for number in range(1025)]
    assert len(TablePlan.make(tables[:1024], 2).banks) == 1024
    with pytest.raises(
        JobFileError,
        match=r"^tables: the tables have 1,025 combinations of dim, optimizer, learning rate, weight decay",
    ):
        TablePlan.make(tables, 2)
