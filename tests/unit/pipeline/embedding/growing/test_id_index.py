"""The indexes of growing tables, in NumPy and compiled: the same answers as a dictionary's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.config.tables import Growth
from shadowsync.pipeline.data.hashing import mix
from shadowsync.pipeline.embedding.growing import row_directory
from shadowsync.pipeline.embedding.growing.id_index import ABSENT, IdIndex
from shadowsync.pipeline.embedding.growing.row_directory import COMPILED_FROM_ROWS, RowDirectory
from shadowsync.pipeline.types import Int32Array, Uint64Array

pytest.importorskip("numba", reason="the extra fast is not installed")
from shadowsync.pipeline.embedding.growing.compiled_index import CompiledIdIndex

Index = IdIndex | CompiledIdIndex
MakeIndex = Callable[[Uint64Array], Index]
BOTH = pytest.mark.parametrize("make", [IdIndex, CompiledIdIndex])

# Keys of one place: equal low bits; with them equal high ones, or none that differ but those in between.
SAME_LOW = (np.arange(60, dtype=np.uint64) << np.uint64(40)) | np.uint64(5)
SAME_LOW_AND_HIGH = (np.arange(60, dtype=np.uint64) << np.uint64(24)) | np.uint64(6)
# Of the last places, so that searches go on at the first one.
LAST = (np.arange(40, dtype=np.uint64) << np.uint64(30)) | np.uint64(2**20 - 2)
EXTREMES = np.array([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], np.uint64)
KEYS = np.concatenate(
    [SAME_LOW, SAME_LOW_AND_HIGH, LAST, EXTREMES, mix(np.arange(4000, dtype=np.uint64) + np.uint64(1))]
)


def hashed(ids: np.ndarray) -> Uint64Array:
    return mix(ids.astype(np.uint64))


def require_a_dictionary(make: MakeIndex, steps: Sequence[tuple[int, int, bool]]) -> None:
    """Add and remove ranges of rows; after each step the index must find what a dictionary has."""
    keys = np.random.default_rng(3).permutation(KEYS)
    index, known = make(keys), dict[int, int]()
    for start, count, adds in steps:
        rows = np.arange(start, min(start + count, len(keys)), dtype=np.int32)
        rows = rows[[(int(keys[row]) in known) != adds for row in rows]]
        if adds:
            index.add(rows)
            known.update((int(keys[row]), row) for row in rows.tolist())
        else:
            index.remove(rows)
            for row in rows:
                del known[int(keys[row])]
        assert index.find(keys).tolist() == [known.get(key, ABSENT) for key in keys.tolist()]
        assert len(index) == len(known)


STEPS = st.lists(
    st.tuples(st.integers(0, len(KEYS) - 1), st.sampled_from([1, 7, 90, 1500]), st.booleans()),
    min_size=1,
    max_size=12,
)
# Grows twice, loses most, and gets them again.
ROUND_TRIP = [(0, 1500, True), (1500, 3000, True), (40, 4000, False), (0, 4200, True)]


@BOTH
@given(steps=STEPS)
def test_an_index_agrees_with_a_dictionary(make: MakeIndex, steps: list[tuple[int, int, bool]]) -> None:
    require_a_dictionary(make, [*steps, *ROUND_TRIP])


class TrustsTheFirstPlace(IdIndex):
    """Control: takes the first place for the key's own."""

    def find(self, keys: Uint64Array, used_next: object = None) -> Int32Array:  # noqa: ARG002
        return self._places[self._first_places(keys)] - np.int32(1)


class LeavesAHole(CompiledIdIndex):
    """Control: frees a place without moving those behind it."""

    def remove(self, rows: Int32Array) -> None:
        low = np.uint32((1 << self._row_bits) - 1)
        self._places[np.isin(self._places & low, rows + 1)] = 0
        self._count -= len(rows)


class TrustsTheHighBits(CompiledIdIndex):
    """Control: finds the row of any key with the same place and the same high bits."""

    def find(self, keys: Uint64Array, used_next: object = None) -> Int32Array:  # noqa: ARG002
        high = np.uint64((1 << 64) - (1 << 32 + self._row_bits))
        between = ~(high | np.uint64(len(self._places) - 1))
        alike = {int(key & ~between): key for key in self._keys[super().find(self._keys) != ABSENT]}
        return super().find(np.array([alike.get(int(key & ~between), key) for key in keys], np.uint64))


@pytest.mark.parametrize("make", [TrustsTheFirstPlace, LeavesAHole, TrustsTheHighBits])
def test_a_broken_index_does_not_agree(make: MakeIndex) -> None:
    with pytest.raises(AssertionError):
        require_a_dictionary(make, ROUND_TRIP)


@BOTH
@pytest.mark.parametrize("spread", [True, False])
def test_an_index_finds_every_key_and_no_other(make: MakeIndex, spread: bool) -> None:
    ids = np.arange(50_000)
    # Keys that all want the same place, too.
    same_place = np.array([0, 2**40, 2**41, 2**63], np.uint64)
    keys = hashed(ids) if spread else np.concatenate([same_place, hashed(ids[4:3000])])
    index = make(keys)
    rows = np.random.default_rng(1).permutation(len(keys)).astype(np.int32)
    for part in np.array_split(rows, 7):
        index.add(part)
    np.testing.assert_array_equal(index.find(keys[rows]), rows)
    assert len(index) == len(keys)
    assert (index.find(hashed(ids + 10**6)) == ABSENT).all()
    kept = rows[::3]
    index.remove(np.setdiff1d(rows, kept))
    found = index.find(keys)
    np.testing.assert_array_equal(np.flatnonzero(found != ABSENT), np.sort(kept))
    assert len(index) == len(kept)
    # What was removed can come back, at once or after the index was built anew.
    again = np.setdiff1d(rows, kept)
    for part in np.array_split(again, 5):
        index.add(part.astype(np.int32))
    np.testing.assert_array_equal(index.find(keys), np.arange(len(keys)))


@BOTH
@pytest.mark.parametrize("shift", [24, 40])
def test_the_same_low_bits_do_not_lose_keys(make: MakeIndex, shift: int) -> None:
    """Searches for all keys begin at one place; those of NumPy go on in the same steps with a shift of 24."""
    keys = np.arange(3000, dtype=np.uint64) << np.uint64(shift)
    index = make(keys)
    index.add(np.arange(3000, dtype=np.int32))
    np.testing.assert_array_equal(index.find(keys), np.arange(3000))


@BOTH
def test_an_index_does_not_grow_with_what_is_removed(make: MakeIndex) -> None:
    keys = hashed(np.arange(2000))
    index = make(keys)
    rows = np.arange(1000, dtype=np.int32)
    index.add(rows)
    for step in range(300):
        old = (np.arange(10, dtype=np.int32) + 10 * step) % 2000
        new = (old + 1000) % 2000
        index.remove(old)
        index.add(new)
    assert len(index) == 1000
    assert (index.find(keys) != ABSENT).sum() == 1000
    assert index.bytes <= 4 * 1000 * 8


@BOTH
def test_an_index_of_no_rows_has_none(make: MakeIndex) -> None:
    assert make(np.zeros(0, np.uint64)).find(KEYS[:3]).tolist() == [ABSENT] * 3


def test_the_compiled_index_takes_no_more_memory() -> None:
    """As `row_bytes.DIRECTORY_BYTES` counts it."""
    keys = hashed(np.arange(300_000))
    indexes: list[Index] = [IdIndex(keys), CompiledIdIndex(keys)]
    for part in np.array_split(np.arange(len(keys), dtype=np.int32), 60):
        for index in indexes:
            index.add(part)
        assert indexes[1].bytes <= indexes[0].bytes


def test_received_keys_are_searched_where_they_lie() -> None:
    """They cannot be written, and begin anywhere; others are every second one of a longer array."""
    index = CompiledIdIndex(KEYS)
    index.add(np.arange(len(KEYS), dtype=np.int32))
    frame = b"123" + KEYS.tobytes()
    received = np.frombuffer(frame, np.uint64, offset=3)
    assert not received.flags.aligned
    assert not received.flags.writeable
    np.testing.assert_array_equal(index.find(received), np.arange(len(KEYS)))
    np.testing.assert_array_equal(index.find(KEYS[::2]), np.arange(0, len(KEYS), 2))
    # What is used next changes nothing, whatever a row has of it.
    for used_next in (np.zeros((len(KEYS), 16), np.float32), np.zeros(len(KEYS), np.uint16)):
        np.testing.assert_array_equal(index.find(received, used_next), np.arange(len(KEYS)))


def test_a_row_that_is_not_there_cannot_be_removed() -> None:
    index = CompiledIdIndex(KEYS)
    index.add(np.arange(10, dtype=np.int32))
    with pytest.raises(KeyError, match="row 20 is not in the index"):
        index.remove(np.array([3, 20], np.int32))
    assert len(index) == 9


def indexes_of(rows: int) -> type[Index]:
    return type(RowDirectory([(rows, Growth())])._index)


def test_large_directories_are_compiled_where_numba_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert indexes_of(COMPILED_FROM_ROWS - 1) is IdIndex
    assert indexes_of(COMPILED_FROM_ROWS) is CompiledIdIndex
    monkeypatch.setattr(row_directory, "find_spec", lambda name: None)  # noqa: ARG005
    assert indexes_of(COMPILED_FROM_ROWS) is IdIndex


def test_the_index_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission, eviction, by use and by age, and times of use are the same with either."""
    tables = [(300, Growth(admit_after=2)), (200, Growth(evict_after_batches=9)), (50, Growth(evict="never"))]
    directories = []
    for least in (10**9, 0):
        monkeypatch.setattr(row_directory, "COMPILED_FROM_ROWS", least)
        directories.append(RowDirectory(tables))
    one, other = directories
    assert type(one._index) is not type(other._index)
    rng = np.random.default_rng(5)
    evicted = 0
    for _ in range(120):
        counts = [70, 50, 5]
        keys = np.concatenate([hashed(rng.zipf(1.2, n) % 900 + 1000 * t) for t, n in enumerate(counts)])
        np.testing.assert_array_equal(one.find(keys), other.find(keys))
        uses = one.use(keys, counts), other.use(keys, counts)
        for name in ("rows", "new", "evicted"):
            np.testing.assert_array_equal(getattr(uses[0], name), getattr(uses[1], name))
        evicted += len(uses[0].evicted)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.used_at, other.used_at)
    assert [one.counts(n) for n in range(3)] == [other.counts(n) for n in range(3)]
    assert evicted > 100
