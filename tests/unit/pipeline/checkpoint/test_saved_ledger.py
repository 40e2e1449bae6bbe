"""The ledger of a checkpoint: what is written comes back, and says which batches are trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.types import BatchId

LEDGER = SavedLedger(
    seed=7,
    complete={(0, 1): SavedSpan(3, 300, 2), (1, 0): SavedSpan(0, 0, 5)},
    partial={(0, 0): {0: 100, 1: 100, 5: 40}},
)
BAD = replace(LEDGER, left_out={(0, 1): {1: 100}, (0, 0): {2: 100}, (2, 2): {0: 7}})


def test_it_comes_back(tmp_path: Path) -> None:
    assert SavedLedger.read(tmp_path, LEDGER.write(tmp_path)) == LEDGER
    assert SavedLedger.read(tmp_path, BAD.write(tmp_path)) == BAD
    empty = SavedLedger(3)
    assert SavedLedger.read(tmp_path, empty.write(tmp_path)) == empty


def test_what_it_counts() -> None:
    assert (LEDGER.batches, LEDGER.examples) == (6, 540)
    assert LEDGER.has(0, 1, 2)
    assert LEDGER.has(0, 0, 5)
    assert not LEDGER.has(0, 0, 2)
    assert not LEDGER.has(1, 1, 0)
    assert (BAD.batches, LEDGER.has(0, 1, 1), BAD.has(0, 1, 1), BAD.has(0, 0, 2)) == (5, True, False, False)


@given(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.sets(st.integers(0, 12), min_size=1))
)
def test_a_shard_that_takes_it_over_has_these_batches_and_no_other(
    numbers: dict[tuple[int, int], set[int]],
) -> None:
    ledger = SavedLedger(7, partial={key: dict.fromkeys(found, 1) for key, found in numbers.items()})
    applied = AppliedBatches.from_array(ledger.applied_ranges())
    assert len(applied) == ledger.batches
    for epoch in range(3):
        for span in range(4):
            for number in range(13):
                batch = BatchId(epoch, span, number, 7)
                assert (batch in applied) == ledger.has(epoch, span, number)


def test_whole_spans_are_ranges_too() -> None:
    applied = AppliedBatches.from_array(LEDGER.applied_ranges())
    assert len(applied) == LEDGER.batches
    assert BatchId(0, 1, 2, 7) in applied
    assert BatchId(0, 1, 2, 8) not in applied
    without = AppliedBatches.from_array(BAD.applied_ranges())
    assert len(without) == BAD.batches
    assert [BatchId(0, 1, n, 7) in without for n in range(4)] == [True, False, True, False]


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no ledger"):
        SavedLedger.read(tmp_path, [])
    for shapes in (((1, 4), (1, 4), (0, 4)), ((1, 5), (1, 5), (0, 4)), ((1, 5), (1, 4), (0, 5))):
        names = ("complete", "partial", "left_out")
        tensors = {name: np.zeros(shape, np.int64) for name, shape in zip(names, shapes, strict=True)}
        entries = write_tensors(tmp_path, "ledger", tensors, {"role": "ledger", "seed": "1"})
        with pytest.raises(CheckpointError, match="the ledger cannot be read"):
            SavedLedger.read(tmp_path, entries)
    twice = replace(LEDGER, partial={(0, 1): {0: 1}})
    with pytest.raises(CheckpointError, match="a span twice"):
        SavedLedger.read(tmp_path, twice.write(tmp_path))
