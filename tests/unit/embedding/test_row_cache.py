"""A worker's copies of hot rows: what they serve, and how old they may be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.data.batch import Float32Array, Int32Array
from shadowsync.pipeline.embedding import row_cache
from shadowsync.pipeline.embedding.cached_bank import ABSENT, CachedBank
from shadowsync.pipeline.embedding.lookup import LookupPlan
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.row_cache import CachedLookup, RowCache, make_caches
from shadowsync.pipeline.errors import ResourceError
from shadowsync.tests.support.embedding_cluster import DrawnRows, EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables import make_table, make_tables

TABLES = (
    make_table("one", 40, 4),
    make_table("bags", 50, 4, pooling="mean"),
    make_table("wide", 30, 7),
    make_table("split", 300, 4),
)
BATCH = 16


class CachedNode:
    """One node with a worker's cache before it, and its count of pushes."""

    def __init__(self, cluster: EmbeddingCluster, cache: RowCache, node: int = 0) -> None:
        self.cluster, self.cache, self.node, self.version = cluster, cache, node, 0

    def look_up(self, request: LookupPlan, *, pushes_meanwhile: int = 0) -> tuple[CachedLookup, int]:
        """The complete answer, and how often the node was asked."""
        asked = self.cache.begin(request)
        self.version += pushes_meanwhile
        times = 1
        while (again := self.cache.take(asked, self.answer(asked), self.version)) is not None:
            asked, times = again, times + 1
        return asked, times

    def answer(self, asked: CachedLookup) -> Float32Array:
        """What the node answers."""
        values = np.empty(asked.floats, np.float32)
        self.cluster.stores[self.node].lookup(asked.rows, values, asked.counts, asked.bag_lengths)
        return values

    def change(self, pushes: int) -> None:
        """All rows become others, by so many pushes."""
        self.version += pushes
        for _, arrays in self.cluster.stores[self.node].pieces():
            weights = arrays["weights"]
            assert isinstance(weights, np.ndarray)
            weights += 1.0


def node_of(staleness: int, tables: Sequence[TableSettings] = TABLES, rows: int = 10_000) -> CachedNode:
    cluster = EmbeddingCluster(tables, 1, distinct=True)
    return CachedNode(cluster, make_caches(cluster.plan, rows, staleness)[0])


def request(node: CachedNode, drawn: DrawnRows) -> LookupPlan:
    return node.cluster.router.requests(drawn.rows, drawn.bag_rows, drawn.bag_lengths)[0]


def plain(node: CachedNode, asked: LookupPlan) -> Float32Array:
    values = np.empty(asked.floats, np.float32)
    node.cluster.stores[0].lookup(asked.rows, values, asked.counts, asked.bag_lengths)
    return values


@pytest.mark.parametrize("rows", [1, 60, 10_000])
def test_while_nothing_changes_answers_are_those_of_the_node(rows: int) -> None:
    node = node_of(5, rows=rows)
    for step in range(6):
        asked = request(node, draw_rows(TABLES, BATCH, step % 2))
        got, _ = node.look_up(asked)
        np.testing.assert_array_equal(got.answer, plain(node, asked))
    cache = node.cache
    single = sum(
        sum(b.share.single for b in request(node, draw_rows(TABLES, BATCH, s)).banks) for s in (0, 1)
    )
    assert cache.hits + cache.misses == 3 * single
    # With room for all, only the first of each is asked for; with room for one a bank, hardly one is hit.
    assert (cache.misses <= single) == (rows == 10_000)
    assert (cache.hits > 2) == (rows > 1)


def test_a_copy_serves_until_it_is_too_old_and_says_how_old_it_is() -> None:
    tables = make_tables([40, 30])
    node, drawn = node_of(3, tables), draw_rows(tables, BATCH, 0)
    before = plain(node, request(node, drawn))
    first, _ = node.look_up(request(node, drawn))
    assert (first.oldest, node.cache.hits) == (0, 0)
    # Pushes, what the copies are of, how often the node is asked: the last step is larger than those before.
    for pushes, oldest, times in ((1, 0, 1), (1, 0, 1), (1, 0, 1), (1, 4, 1), (4, 8, 2)):
        node.change(pushes)
        got, asked = node.look_up(request(node, drawn))
        assert (got.oldest, asked) == (oldest, times)
        np.testing.assert_allclose(got.answer, before + {0: 0, 4: 4, 8: 5}[oldest], rtol=1e-6)
        assert np.array_equal(got.answer, plain(node, got.request)) == (oldest == node.version)
    rows = len(first.request.rows)
    assert (node.cache.hits, node.cache.misses, node.cache.refreshed) == (3 * rows, 3 * rows, rows)
    assert node.cache.spared_floats == 4 * node.cache.hits


@pytest.mark.parametrize("staleness", [0, 1, 7])
def test_no_row_of_a_batch_is_older_than_the_bound_whoever_pushes_meanwhile(staleness: int) -> None:
    node = node_of(staleness)
    draw = np.random.default_rng(staleness)
    ages = []
    for step in range(60):
        asked = request(node, draw_rows(TABLES, BATCH, step % 5))
        pushes = int(draw.integers(0, 6)) * (step % 3 == 0)
        node.change(1)
        at = node.version + pushes
        got, _ = node.look_up(asked, pushes_meanwhile=pushes)
        ages.append(at - got.oldest)
    assert min(ages) >= 0
    assert max(ages) <= staleness
    # The control: without the second question there would have been older ones.
    assert node.cache.refreshed > 0
    assert (node.cache.hits > 0) == (staleness > 0)


def test_what_is_asked_again_is_only_what_was_too_old() -> None:
    tables = make_tables([40])
    node = node_of(2, tables)
    few, more = (DrawnRows(np.array([r], np.int32), *_no_bags()) for r in ([1, 2], [1, 2, 3, 4]))
    node.look_up(request(node, few))
    node.change(1)
    node.look_up(request(node, more))
    asked = node.cache.begin(request(node, more))
    assert asked.rows.tolist() == []
    node.change(2)
    again = node.cache.take(asked, node.answer(asked), node.version)
    assert again is not None
    assert again.rows.tolist() == [1, 2]
    # However many pushes come meanwhile: the batch was looked up when it first was.
    assert node.cache.take(again, node.answer(again), node.version + 100) is None
    assert again.oldest == 1


def test_pushes_that_come_between_are_foreseen() -> None:
    tables = make_tables([40])
    foresees, blind = node_of(20, tables), node_of(20, tables)
    for node in (foresees, blind):
        asked = request(node, draw_rows(tables, BATCH, 0))
        for _ in range(60):
            if node is blind:
                node.cache._drift = 0
            node.look_up(asked, pushes_meanwhile=3)
    assert foresees.cache.refreshed == 0 < blind.cache.refreshed
    assert foresees.cache.hits == blind.cache.hits > 4 * foresees.cache.misses


def test_a_row_that_takes_anothers_slot_is_not_taken_for_it() -> None:
    bank = CachedBank(2, 1000, 3)
    rows = np.arange(8, dtype=np.int32)
    values = np.repeat(rows.astype(np.float32), 3).reshape(8, 3)
    bank.put(rows, values, 5)
    out = np.empty((8, 3), np.float32)
    found = bank.find(rows, 0, out)
    kept = np.flatnonzero(found != ABSENT)
    assert 1 <= len(kept) <= 2
    np.testing.assert_array_equal(out[kept], values[kept])
    assert found[kept].tolist() == [5] * len(kept)
    assert (bank.find(rows, 6, out) == ABSENT).all()


def test_rows_are_spread_over_the_slots() -> None:
    draw = np.random.default_rng(1)
    for taken in (draw.permutation(1_000_000)[:1000], 1000 * np.arange(1000), np.arange(1000)):
        bank, rows = CachedBank(1000, 1_000_000, 1), taken.astype(np.int32)
        bank.put(rows, np.zeros((1000, 1), np.float32), 1)
        kept = (bank.find(rows, 0, np.empty((1000, 1), np.float32)) != ABSENT).sum()
        # By chance 1 - 1/e of them find a slot that none after them takes.
        assert kept > 580
    # The control: numbers with one remainder would be in one slot without mixing.
    assert len(set(taken % 1000)) == 1000 > len(set(1000 * taken % 1000)) == 1


def test_the_rows_of_a_cache_are_shared_by_tables_and_not_by_bags() -> None:
    plan = EmbeddingCluster(TABLES, 2).plan
    caches = make_caches(plan, 120, 1)
    slots = [[bank.slots for bank in cache._banks] for cache in caches]
    # Three tables with one row an example, 40 each, but never more than there are rows.
    wide = next(piece.node for piece in plan.pieces if piece.table == 2)
    assert slots[wide][1] == 30
    assert 70 <= sum(own[0] for own in slots) <= 81
    assert make_caches(plan, 0, 1) == []


def _no_bags() -> tuple[Int32Array, Int32Array]:
    return np.zeros(0, np.int32), np.zeros((0, 0), np.int32)


def test_a_worker_that_joins_late_has_use_of_its_copies_at_once() -> None:
    tables = make_tables([40])
    node = node_of(5, tables)
    node.version = 1_000_000
    asked = request(node, draw_rows(tables, BATCH, 0))
    for _ in range(3):
        node.look_up(asked)
    assert (node.cache.hits, node.cache.misses) == (2 * len(asked.rows), len(asked.rows))


def test_copies_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TablePlan.make([make_table("a", 1000, 6)], 1)
    needed = 500 * (4 * 6 + 12)
    monkeypatch.setattr(row_cache, "available_memory_bytes", lambda: needed - 1)
    with pytest.raises(ResourceError, match=f"500 rows take {needed:,} bytes, and {needed - 1:,} bytes are"):
        make_caches(plan, 500, 1)
    monkeypatch.setattr(row_cache, "available_memory_bytes", lambda: needed)
    (cache,) = make_caches(plan, 500, 1)
    (bank,) = cache._banks
    assert bank._rows.nbytes + bank._versions.nbytes + bank._values.nbytes == needed
