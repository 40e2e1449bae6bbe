"""The split that levels what the nodes have to do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.config.row_bytes import row_bytes
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.placement.ranges import Range, find_split_fault
from shadowsync.pipeline.embedding.placement.split_by_cost import (
    LEVEL_SLACK,
    TableLoad,
    bytes_limit,
    split_by_cost,
)
from shadowsync.pipeline.embedding.placement.split_by_rows import split_by_rows
from shadowsync.pipeline.errors import JobFileError
from shadowsync.tests.support.tables.tables import make_table, make_tables


@st.composite
def loaded(draw: st.DrawFn) -> tuple[TableSettings, TableLoad]:
    """A table with a load that follows some histogram of its rows."""
    rows = draw(st.one_of(st.integers(1, 5), st.integers(1, 400), st.just(100_000)))
    table = make_table(rows=rows, dim=draw(st.sampled_from([1, 4, 64])), optimizer="rowwise_adagrad")
    inner = draw(st.sets(st.integers(1, rows - 1), max_size=5)) if rows > 1 else set()
    edges = [0, *sorted(inner), rows]
    counts = draw(st.lists(st.integers(0, 50), min_size=len(edges) - 1, max_size=len(edges) - 1))
    return table, TableLoad.of_counts(rows, edges, counts, draw(st.sampled_from([0, 700, 2000, 60_000])))


LOADED = st.lists(loaded(), min_size=1, max_size=12)


def heaviest_row(load: TableLoad) -> int:
    """What the row costs that costs most: less than that cannot be moved."""
    spans = zip(itertools.pairwise(load.rows), itertools.pairwise(load.costs), strict=True)
    return max(-(-(high - low) // (stop - start)) for (start, stop), (low, high) in spans)


def loads_of(ranges: list[Range], loads: list[TableLoad], nodes: int) -> list[int]:
    """What each node has to do."""
    found = [0] * nodes
    for table, start, stop, node in ranges:
        found[node] += loads[table].between(start, stop)
    return found


def width(table: TableSettings) -> int:
    """Bytes of a row."""
    return row_bytes(table.optimizer, table.dim, table.storage)


def bytes_of(ranges: list[Range], tables: list[TableSettings], nodes: int) -> list[int]:
    """What each node holds."""
    found = [0] * nodes
    for table, start, stop, node in ranges:
        found[node] += width(tables[table]) * (stop - start)
    return found


@settings(max_examples=300)
@given(LOADED, st.integers(1, 9))
def test_every_row_has_one_node_that_has_room_and_is_not_overloaded(
    found: list[tuple[TableSettings, TableLoad]], nodes: int
) -> None:
    tables, loads = [table for table, _ in found], [load for _, load in found]
    if sum(table.rows for table in tables) < nodes:
        with pytest.raises(JobFileError, match="nodes are too many"):
            split_by_cost(tables, loads, nodes)
        return
    ranges = split_by_cost(tables, loads, nodes)
    assert find_split_fault(tables, nodes, ranges) == ""
    assert len(ranges) <= len(tables) + 2 * (nodes - 1)
    held, limit = bytes_of(ranges, tables, nodes), bytes_limit(tables, nodes)
    assert max(held) <= limit
    did = loads_of(ranges, loads, nodes)
    assert sum(did) == sum(load.total for load in loads)
    if max(held) + max(map(width, tables)) <= 0.95 * limit:
        # No node was stopped by its memory.
        mean = -(-sum(did) // nodes)
        heaviest = max(map(heaviest_row, loads))
        assert max(did) <= max(mean * (1 + LEVEL_SLACK), mean + heaviest)
    assert split_by_cost(tables, loads, nodes) == ranges


def test_a_table_that_is_looked_up_often_is_not_beside_others() -> None:
    tables = make_tables([10_000] * 8, 16)
    loads = [TableLoad.even(10_000, 20_000 if number == 0 else 1000) for number in range(8)]
    by_cost = loads_of(split_by_cost(tables, loads, 2), loads, 2)
    by_rows = loads_of(split_by_rows(tables, 2), loads, 2)
    assert max(by_cost) <= 1.05 * sum(by_cost) / 2
    # The control: by rows alone one node gets half of the tables, and so all of the work but a little.
    assert max(by_rows) > 1.5 * sum(by_rows) / 2


def test_a_split_table_is_cut_where_its_load_is_and_not_where_its_rows_are() -> None:
    # Nine tenths of the lookups go to the first tenth of the rows.
    tables = list(make_tables([100_000], 16))
    loads = [TableLoad.of_counts(100_000, [0, 10_000, 100_000], [90, 10], 1_000_000)]
    ranges = split_by_cost(tables, loads, 2)
    did = loads_of(ranges, loads, 2)
    # As far as memory allows: the second node may hold 5/8 of the rows.
    assert [stop - start for _, start, stop, _ in ranges] == [37_500, 62_500]
    rows_alone = loads_of(split_by_rows(tables, 2), loads, 2)
    assert max(did) < max(rows_alone) < 1_000_000


@pytest.mark.parametrize(
    ("head", "share", "beside"), [(10_000, 90, 10), (10_000, 90, 400_000), (1, 60, 400_000)]
)
def test_a_table_of_much_work_and_one_of_much_memory_level_each_other(
    head: int, share: int, beside: int
) -> None:
    tables = [make_table("work", 100_000, 16), make_table("memory", 60_000, 64)]
    loads = [
        TableLoad.of_counts(100_000, [0, head, 100_000], [share, 100 - share], 1_000_000),
        TableLoad.of_counts(60_000, [0, 6_000, 60_000], [50, 50], beside),
    ]
    ranges = split_by_cost(tables, loads, 2)
    did = loads_of(ranges, loads, 2)
    assert max(did) <= 1.03 * sum(did) / 2
    assert max(bytes_of(ranges, tables, 2)) <= bytes_limit(tables, 2)


def test_the_heaviest_row_is_the_bound_that_no_cut_can_beat() -> None:
    loads = [TableLoad.of_counts(1000, [0, 1, 1000], [80, 20], 100_000)]
    assert heaviest_row(loads[0]) == 80_000
    did = loads_of(split_by_cost(make_tables([1000], 4), loads, 4), loads, 4)
    assert 80_000 <= max(did) <= 90_000


def test_many_tables_few_rows_and_no_load_at_all() -> None:
    tables = make_tables([1 + number % 7 for number in range(1024)], 8)
    loads = [TableLoad.even(table.rows, 1000 + 13 * n) for n, table in enumerate(tables)]
    did = loads_of(split_by_cost(tables, loads, 7), loads, 7)
    assert max(did) <= 1.05 * sum(did) / 7
    few = make_tables([1, 1, 2], 4)
    idle = [TableLoad.even(table.rows, 0) for table in few]
    ranges = split_by_cost(few, idle, 4)
    assert find_split_fault(few, 4, ranges) == ""


def test_reach_is_the_last_row_that_there_is_room_for() -> None:
    load = TableLoad.of_counts(100, [0, 10, 11, 100], [0, 7, 3], 1000)
    for start in range(0, 100, 3):
        for room in (0, 1, 10, 300, 699, 700, 701, 999, 1000):
            stop = load.reach(start, room)
            costs = np.array([load.between(start, end) for end in range(start, 101)])
            assert stop == start + int(np.flatnonzero(costs <= room)[-1])


@pytest.mark.parametrize(
    ("ranges", "fault"),
    [
        ([(0, 0, 10, 0)], ""),
        ([(0, 0, 4, 1), (0, 4, 10, 0)], ""),
        ([(0, 0, 4, 1), (0, 5, 10, 0)], "rows 4 to 4 of table C1 are on no node"),
        ([(0, 0, 6, 1), (0, 4, 10, 0)], "rows 4 to 5 of table C1 are on two nodes"),
        ([(0, 0, 4, 1)], "rows 4 to 9 of table C1 are on no node"),
        ([], "rows 0 to 9 of table C1 are on no node"),
        ([(0, 0, 10, 2)], "rows 0 to 9 of table C1, which has 10, are on node 2 of 2"),
        ([(0, 0, 11, 0)], "rows 0 to 10 of table C1, which has 10, are on node 0 of 2"),
        ([(0, 0, 10, 0), (1, 0, 1, 0)], "it has a table 1, but there are 1"),
        ([(0, 0, 4, 0), (0, 4, 10, 0)], "node 0 has two ranges of table C1"),
    ],
)
def test_what_is_wrong_with_a_split_is_said(ranges: list[tuple[int, ...]], fault: str) -> None:
    tables = make_tables([10])
    assert find_split_fault(tables, 2, [Range(*values) for values in ranges]) == fault
    if fault:
        with pytest.raises(ValueError, match=fault):
            TablePlan.of_ranges(tables, 2, [Range(*values) for values in ranges])
