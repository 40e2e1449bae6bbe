"""What a sample says of the tables, and what that costs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from shadowsync.pipeline.config.tables import TableColumn
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.embedding.placement.row_costs import (
    CountedRowCosts,
    LookupTraffic,
    TimedRowCosts,
    table_cost,
)
from shadowsync.pipeline.embedding.placement.table_access import AccessCounter, TableAccess
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.tables.tables import make_table

TABLES = (make_table("one", 1000), make_table("bag", 50, pooling="sum"), make_table("skewed", 10**6))
BATCH = 64


def batches(count: int) -> list[Batch]:
    draw = np.random.default_rng(1)
    made = []
    for number in range(count):
        skewed = np.where(draw.random(BATCH) < 0.5, 7, draw.integers(0, 10**6, BATCH))
        rows = np.stack([draw.integers(0, 1000, BATCH), skewed]).astype(np.int32)
        lengths = np.array([np.arange(BATCH) % 5], np.int32)
        bag = draw.integers(0, 50, int(lengths.sum())).astype(np.int32)
        labels, dense = np.zeros(BATCH, np.float32), np.zeros((BATCH, 1), np.float32)
        made.append(Batch(BatchId(0, 0, number, 1), labels, dense, rows, bag_rows=bag, bag_lengths=lengths))
    return made


def counted(count: int) -> tuple[list[Batch], list[TableAccess]]:
    made, counter = batches(count), AccessCounter(TABLES)
    for batch in made:
        counter.add(batch)
    assert counter.examples == count * BATCH
    assert counter.bytes == sum(batch.rows.nbytes + batch.bag_rows.nbytes for batch in made)
    return made, counter.result()


def test_the_counts_are_those_of_plain_sets() -> None:
    made, (one, bag, skewed) = counted(40)
    examples = 40 * BATCH
    assert (one.rows_per_example, skewed.rows_per_example) == (1.0, 1.0)
    assert bag.rows_per_example == sum(len(batch.bag_rows) for batch in made) / examples
    for access, rows in ((one, [b.rows[0] for b in made]), (bag, [b.bag_rows for b in made])):
        assert access.distinct_per_example == sum(len(set(own.tolist())) for own in rows) / examples
    assert one.head_share == bag.head_share == 1.0
    assert 0.5 < skewed.head_share < 1.0


def test_the_histogram_has_every_lookup_in_its_place() -> None:
    made, (one, _, skewed) = counted(40)
    for access, place in ((one, 0), (skewed, 1)):
        every = np.concatenate([batch.rows[place] for batch in made])
        edges = np.array(access.edges)
        assert edges[0] == 0
        assert edges[-1] == (1000, 10**6)[place]
        assert (np.diff(edges) > 0).all()
        assert list(access.counts) == np.histogram(every, edges - 0.5)[0].tolist()
    # A row with half of the lookups is a part by itself.
    assert (7, 8) in list(itertools.pairwise(skewed.edges))
    assert len(skewed.counts) < 600


def test_a_table_of_which_nothing_was_seen_is_used_evenly() -> None:
    (one, *_) = AccessCounter(TABLES).result()
    assert (one.rows_per_example, one.edges, one.counts) == (1.0, (0, 1000), (0,))


def access(rows: float = 1.0, distinct: float = 0.5, head: float = 0.5, summed: float = 0.0) -> TableAccess:
    return TableAccess(rows, distinct, head, (0, 10), (1,), summed)


def test_columns_of_a_table_are_counted_together() -> None:
    columns = [TableColumn("item"), TableColumn("seen", "sum", place=1), TableColumn("list", "none", place=3)]
    tables = (
        make_table("item", 9, columns=columns),
        make_table("user", 5, columns=[TableColumn("user", place=2)]),
    )
    counter = AccessCounter(tables)
    lengths = np.array([[2, 1], [0, 3]], np.int32)
    rows = np.array([[1, 2], [4, 4]], np.int32)
    bags = np.array([1, 1, 7, 2, 2, 8], np.int32)
    labels, dense = np.zeros(2, np.float32), np.zeros((2, 1), np.float32)
    counter.add(Batch(BatchId(0, 0, 0, 1), labels, dense, rows, bag_rows=bags, bag_lengths=lengths))
    item, user = counter.result()
    # Rows 1, 2, 7 and 8, of two examples.
    assert (item.rows_per_example, item.distinct_per_example, item.summed_per_example) == (4.0, 2.0, 1.5)
    assert (user.rows_per_example, user.distinct_per_example, user.summed_per_example) == (1.0, 0.5, 0.0)
    # Of the rows that are sent one by one each is requested once; a summed list is one vector more.
    prices, traffic = CountedRowCosts(), LookupTraffic(distinct=True)
    both = table_cost(tables[0], item, prices, traffic)
    single = replace(item, rows_per_example=2.5, summed_per_example=0.0)
    assert both.wire_ns > table_cost(make_table("item", 9), single, prices, traffic).wire_ns


def test_what_costs_more_comes_out_dearer() -> None:
    prices = CountedRowCosts()

    def total(
        pooling: str = "", dim: int = 16, optimizer: str = "sgd", used: TableAccess | None = None
    ) -> float:
        table = make_table(rows=1000, dim=dim, pooling=pooling, optimizer=optimizer)
        return table_cost(table, used or access(), prices).total_ns

    assert total(dim=64) > 1.5 * total()
    assert total(optimizer="adagrad") > total(optimizer="rowwise_adagrad") > total()
    assert total(used=access(distinct=1.0)) > total()
    # Twenty rows an example cost nearly twenty times as much, or less if they come back as one vector.
    assert 15 * total() < total(used=access(20.0, 10.0)) <= 20 * total()
    assert total(pooling="sum", used=access(20.0, 10.0, summed=20.0)) < total(used=access(20.0, 10.0))


def test_rows_that_are_asked_for_once_a_batch_are_charged_once() -> None:
    table, bags = make_table(dim=16), make_table(dim=16, pooling="sum")
    prices, repeated = CountedRowCosts(), access(1.0, 0.1)
    plain, once = (table_cost(table, repeated, prices, LookupTraffic(distinct=d)) for d in (False, True))
    assert once.lookup_ns == pytest.approx(plain.lookup_ns / 10)
    assert once.wire_ns == pytest.approx(plain.wire_ns / 10)
    assert once.update_ns < plain.update_ns
    # Every entry of a bag is asked for, however many examples have it.
    summed = access(1.0, 0.1, summed=1.0)
    assert table_cost(bags, summed, prices, LookupTraffic(distinct=True)) == table_cost(bags, summed, prices)
    half = table_cost(table, repeated, prices, LookupTraffic(float_bytes=2.0))
    assert (half.lookup_ns, half.update_ns) == (plain.lookup_ns, plain.update_ns)
    assert half.wire_ns == pytest.approx(plain.wire_ns * (4 + 32) / (4 + 64))


def test_rows_of_a_large_table_are_dearer_but_for_its_head() -> None:
    prices = TimedRowCosts(((5.0, 45.0), (10.0, 115.0)))
    assert prices.move(16, 1) == 5.0
    assert prices.move(1024, 1 << 40) == 115.0
    assert 5.0 < prices.move(64, 1 << 21) < 20.0
    large, small = make_table(rows=10**7, dim=16), make_table(rows=100, dim=16)
    cold, hot = access(head=0.0), access(head=1.0)
    assert table_cost(large, cold, prices).total_ns > table_cost(large, hot, prices).total_ns
    assert table_cost(large, hot, prices) == table_cost(small, hot, prices)


def test_the_clock_says_what_a_row_costs() -> None:
    """Each look at it is a microsecond later, so a move of ROWS_AT_ONCE rows seems to take one."""
    ticks = itertools.count()
    prices = TimedRowCosts.measure(1e-9, clock=lambda: next(ticks) * 1e-6)
    assert [cost for costs in prices.grid for cost in costs] == [pytest.approx(1000 / 8192)] * 4
