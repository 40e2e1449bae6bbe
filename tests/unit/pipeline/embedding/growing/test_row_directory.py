"""Which id of a growing table has which row."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.config.tables import Growth
from shadowsync.pipeline.data.hashing import mix
from shadowsync.pipeline.embedding.growing.count_sketch import LARGEST_COUNT, CountSketch
from shadowsync.pipeline.embedding.growing.id_index import ABSENT
from shadowsync.pipeline.embedding.growing.row_directory import LAST_BATCH, RowDirectory, RowUse
from shadowsync.pipeline.types import Uint64Array


def keys_of(*ids: int) -> Uint64Array:
    return np.array(ids, np.uint64)


class OneTable(RowDirectory):
    """A directory of a single table."""

    def use_one(self, keys: Uint64Array) -> RowUse:
        return self.use(keys, [len(keys)])


def directory_of(rows: int, growth: Growth) -> OneTable:
    return OneTable([(rows, growth)])


def hashed(ids: np.ndarray) -> Uint64Array:
    return mix(ids.astype(np.uint64))


def test_a_sketch_counts_rare_keys_among_many() -> None:
    sketch = CountSketch(4000)
    keys = hashed(np.arange(4000))
    for _ in range(3):
        sketch.add(keys)
    counts = sketch.add(keys)
    assert (counts >= 4).all()
    # A sketch that added up what it meets would be far above.
    assert (counts == 4).mean() > 0.95


def test_a_sketch_forgets_and_does_not_overflow() -> None:
    sketch = CountSketch(1)
    for _ in range(300):
        last = sketch.add(keys_of(7))
    assert last.tolist() == [LARGEST_COUNT]
    others = hashed(np.arange(1, 30_000))
    for part in np.array_split(others, 30):
        sketch.add(part)
    assert sketch.add(keys_of(7))[0] < LARGEST_COUNT


def test_only_use_gives_a_row_and_the_same_id_keeps_it() -> None:
    directory = directory_of(8, Growth())
    assert directory.find(keys_of(5, 6)).tolist() == [ABSENT, ABSENT]
    first = directory.use_one(keys_of(5, 6, 5))
    assert first.rows.tolist() == [0, 1, 0]
    assert first.new.tolist() == [0, 1]
    again = directory.use_one(keys_of(6, 7))
    assert again.rows.tolist() == [1, 2]
    assert again.new.tolist() == [2]
    assert directory.find(keys_of(7, 5, 9)).tolist() == [2, 0, ABSENT]
    assert directory.counts(0) == {"rows": 3, "admitted": 3, "evicted": 0, "refused": 0}


def test_the_least_recently_used_go_first_and_never_those_of_the_batch() -> None:
    directory = directory_of(4, Growth())
    directory.use_one(keys_of(1, 2, 3, 4))
    directory.use_one(keys_of(2, 4))
    use = directory.use_one(keys_of(4, 10))
    assert use.evicted.tolist() == use.new.tolist()
    left = {key for key in (1, 2, 3, 4, 10) if directory.find(keys_of(key))[0] != ABSENT}
    assert {2, 4, 10} < left
    assert len(left) == 4
    # More ids than rows in one batch: none of its own is evicted, and the rest is told.
    use = directory.use_one(keys_of(*range(20, 30)))
    assert (use.rows != ABSENT).sum() == 4
    assert directory.counts(0)["refused"] == 6
    assert directory.counts(0)["rows"] == 4


def test_without_eviction_a_full_table_takes_no_more_and_says_so() -> None:
    directory = directory_of(2, Growth(evict="never"))
    directory.use_one(keys_of(1, 2))
    use = directory.use_one(keys_of(3, 2))
    assert use.rows.tolist() == [ABSENT, 1]
    assert (directory.counts(0)["refused"], directory.counts(0)["evicted"]) == (1, 0)


def test_an_id_waits_for_its_batch() -> None:
    directory = directory_of(8, Growth(admit_after=3))
    for _ in range(2):
        # Twice in a batch counts once.
        assert directory.use_one(keys_of(1, 1)).rows.tolist() == [ABSENT, ABSENT]
    assert directory.use_one(keys_of(1, 2)).rows.tolist() == [0, ABSENT]
    assert directory.counts(0)["refused"] == 0


def test_old_rows_go_by_age() -> None:
    directory = directory_of(100, Growth(evict_after_batches=10))
    directory.use_one(keys_of(1))
    evicted = [directory.use_one(keys_of(2)).evicted.tolist() for _ in range(20)]
    assert [0] in evicted
    assert directory.find(keys_of(1, 2)).tolist() == [ABSENT, 1]
    kept = directory_of(100, Growth())
    kept.use_one(keys_of(1))
    assert all(not len(kept.use_one(keys_of(2)).evicted) for _ in range(20))


def test_rows_go_by_the_time_since_their_last_use() -> None:
    now = [500.0]
    limits = (Growth(evict_after_seconds=60.0), Growth())
    directory = RowDirectory([(10, growth) for growth in limits], clock=lambda: now[0])

    def use(*ids: int) -> list[int]:
        # An id of each table: 1 and 101.
        keys = keys_of(*ids, *(100 + one for one in ids))
        found: list[int] = directory.use(keys, [len(ids), len(ids)]).evicted.tolist()
        return found

    for seconds, ids, evicted in ((0, (1, 2), []), (40, (2,), []), (60, (3,), []), (64, (3,), [0])):
        now[0] = 500.0 + seconds
        assert use(*ids) == evicted, seconds
    assert directory.find(keys_of(1, 101, 2, 102)).tolist() == [ABSENT, 10, 1, 11]
    # Looked at each sixteenth of the time, whatever the number of batches.
    now[0] = 500.0 + 101.2
    assert [use(3) for _ in range(50)] == [[1]] + [[]] * 49
    assert directory.counts(0)["evicted"] == 2
    assert directory.counts(1)["evicted"] == 0, "the control: a table without a time"
    assert directory_of(3, Growth()).used_seconds is None


def test_more_batches_than_a_number_can_count_keep_the_order_of_use() -> None:
    directory = directory_of(3, Growth())
    directory.use_one(keys_of(1))
    directory.batches = LAST_BATCH - 2
    assert not any(directory.use_one(keys_of(key)).renumbered for key in (2, 3))
    use = directory.use_one(keys_of(2))
    assert use.renumbered
    assert use.rows.tolist() == [1]
    assert directory.used_at.tolist() == [1, 2**30 + 1, 2**30]
    assert [directory.use_one(keys_of(key)).evicted.tolist() for key in (4, 5)] == [[0], [2]]
    assert directory.find(keys_of(2, 4, 5)).tolist() == [1, 0, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), max_size=30),
    st.sampled_from([5, 12, 40]),
)
def test_a_directory_agrees_with_a_dictionary(batches: list[list[int]], rows: int) -> None:
    directory = directory_of(rows, Growth())
    last_use: OrderedDict[int, int] = OrderedDict()
    for number, ids in enumerate(batches):
        use = directory.use_one(keys_of(*ids))
        for evicted in set(use.evicted.tolist()):
            (gone,) = [key for key, row in last_use.items() if row == evicted]
            assert gone not in ids
            del last_use[gone]
        for key, row in zip(ids, use.rows.tolist(), strict=True):
            if row == ABSENT:
                assert len(set(ids)) > rows
                continue
            assert last_use.setdefault(key, row) == row
        assert len(set(last_use.values())) == len(last_use) == directory.counts(0)["rows"]
        assert directory.batches == number + 1
        found = directory.find(keys_of(*range(31))).tolist()
        assert {key: row for key, row in enumerate(found) if row != ABSENT} == dict(last_use)


def test_restored_ids_keep_their_rows_and_too_many_lose_the_oldest() -> None:
    directory = directory_of(3, Growth())
    wanted = np.array([2, ABSENT, ABSENT, ABSENT], np.int32)
    rows = directory.restore(0, keys_of(1, 2, 3, 4), np.array([9, 5, 7, 8], np.int32), wanted)
    assert rows.tolist() == [2, ABSENT, 0, 1]
    assert directory.find(keys_of(1, 2, 3, 4)).tolist() == [2, ABSENT, 0, 1]
    assert directory.batches == 9
    assert directory.counts(0)["rows"] == 3
    some = directory_of(3, Growth())
    assert some.restore(0, keys_of(8), np.array([4], np.int32), np.array([1], np.int32)).tolist() == [1]
    assert some.use_one(keys_of(9, 10, 8)).rows.tolist() == [0, 2, 1]


def test_tables_share_an_index_and_nothing_else() -> None:
    directory = RowDirectory([(2, Growth()), (3, Growth(evict="never"))])
    first = directory.use(keys_of(1, 2, 101, 102, 103), [2, 3])
    assert first.rows.tolist() == [0, 1, 2, 3, 4]
    second = directory.use(keys_of(3, 104), [1, 1])
    # The first table evicts one of its own; the second gives no row, although the first had one to free.
    assert second.rows[0] in (0, 1)
    assert second.evicted.tolist() == [second.rows[0]]
    assert second.rows[1] == ABSENT
    assert [directory.counts(n)["refused"] for n in (0, 1)] == [0, 1]
    assert [directory.counts(n)["evicted"] for n in (0, 1)] == [1, 0]
    assert directory.find(keys_of(101, 102, 103)).tolist() == [2, 3, 4]
    assert directory.batches == 2
