"""What a reader may deliver: every field that cannot be is refused, by the batch's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.runtime.span_proofs import proof_of
from shadowsync.nodes.worker.delivery_check import DeliveryCheck
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection

BATCH, SEED, ROWS = 8, 7, 50
READER, KEY = "reader-0", "a key"
JOB = Job.model_validate(
    {
        "data": {
            "format": "csv",
            "path": ["x"],
            "columns": {
                "click": {"kind": "label"},
                "buy": {"kind": "label"},
                "w": {"kind": "weight"},
                "x": {"kind": "dense"},
                "y": {"kind": "dense"},
                "id": {"kind": "categorical"},
                "many": {"kind": "multi_hot", "weights": "ws"},
                "user": {"kind": "group"},
            },
        },
        "model": {"name": "shared_bottom", "table_rows": ROWS},
        "trainer": {"batch": BATCH},
        "run": {"seed": SEED},
    }
)
EXAMPLES = 4
ROW, BAGS = np.zeros((1, EXAMPLES), np.int32), np.ones((1, EXAMPLES), np.int32)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


GOOD = Delivery(
    sequence=1,
    pass_number=0,
    id=BatchId(0, 3, 5, SEED),
    labels=floats(EXAMPLES),
    other_labels=floats(1, EXAMPLES),
    dense=floats(EXAMPLES, 2),
    rows=ROW,
    weights=floats(EXAMPLES),
    bag_rows=np.zeros(EXAMPLES, np.int32),
    bag_lengths=BAGS,
    item_weights=floats(EXAMPLES),
    groups=np.full((1, EXAMPLES), 2**64 - 1, np.uint64),
    proof=proof_of(KEY, READER, 0, 3, 6),
)


@pytest.fixture
def check() -> DeliveryCheck:
    return DeliveryCheck(JOB, ShardRouter(TablePlan.make(JOB.tables, 1)), KEY)


def one_is(array: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed.flat[-1] = value
    return changed


def test_what_can_be_is_accepted(check: DeliveryCheck) -> None:
    check.require(READER, GOOD)
    rows = np.full_like(ROW, ROWS - 1)
    other = dataclasses.replace(GOOD, rows=rows, labels=0 * GOOD.labels, weights=0 * GOOD.weights)
    check.require(READER, other)
    # A pass of scores is counted, and its spans are not granted.
    check.require(READER, dataclasses.replace(GOOD, pass_number=1, proof=b""))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"id": BatchId(0, 3, 5, SEED + 1)}, "seed"),
        ({"id": BatchId(1, 3, 5, SEED)}, "1 epoch"),
        ({"id": BatchId(0, 2, 5, SEED)}, "span 2 of epoch 0 was not given to reader-0"),
        ({"id": BatchId(0, 3, 6, SEED)}, "at most 6 batches"),
        ({"proof": b""}, "was not given"),
        ({"proof": proof_of(KEY, "reader-1", 0, 3, 6)}, "was not given"),
        ({"proof": proof_of("", READER, 0, 3, 6)}, "was not given"),
        ({"proof": (7).to_bytes(8, "big") + GOOD.proof[8:]}, "was not given"),
        ({"proof": b"\xff" * 24}, "was not given"),
        ({"labels": floats(0)}, "0 examples"),
        ({"labels": floats(BATCH + 1)}, "9 examples"),
        ({"labels": one_is(GOOD.labels, 0.5)}, "label"),
        ({"labels": one_is(GOOD.labels, np.nan)}, "label"),
        ({"other_labels": one_is(GOOD.other_labels, -1.0)}, "label"),
        ({"other_labels": floats(2, EXAMPLES)}, "other labels"),
        ({"dense": one_is(GOOD.dense, np.nan)}, "dense value"),
        ({"dense": one_is(GOOD.dense, -np.inf)}, "dense value"),
        ({"dense": floats(EXAMPLES, 3)}, "dense values"),
        ({"dense": floats(EXAMPLES - 1, 2)}, "dense values"),
        ({"weights": one_is(GOOD.weights, np.inf)}, "weight"),
        ({"weights": one_is(GOOD.weights, -1.0)}, "weight"),
        ({"weights": floats(0)}, "sample weights"),
        ({"item_weights": one_is(GOOD.item_weights, np.nan)}, "weight"),
        ({"item_weights": floats(EXAMPLES + 1)}, "item_weights"),
        ({"rows": one_is(ROW, ROWS)}, "row number"),
        ({"rows": one_is(ROW, -1)}, "row number"),
        ({"rows": np.zeros((2, EXAMPLES), np.int32)}, "rows must be"),
        ({"rows": ROW[:, :-1].copy()}, "rows of 3 examples"),
        ({"bag_rows": one_is(GOOD.bag_rows, ROWS)}, "row number"),
        ({"bag_lengths": one_is(BAGS, -1)}, "bag_lengths"),
        ({"bag_lengths": one_is(BAGS, 2)}, "bag_rows"),
        ({"keys": np.zeros((1, EXAMPLES), np.uint64)}, "keys"),
        ({"groups": np.zeros((0, 0), np.uint64)}, "groups of shape"),
        ({"groups": np.zeros((1, EXAMPLES + 1), np.uint64)}, "groups of shape"),
        ({"bag_keys": np.zeros(EXAMPLES + 1, np.uint64)}, "bag_keys"),
    ],
)
def test_what_cannot_be_is_refused(check: DeliveryCheck, values: Mapping[str, Any], why: str) -> None:
    wrong = dataclasses.replace(GOOD, **values)
    check.require(READER, GOOD)
    with pytest.raises(ValueError, match=why) as refused:
        check.require(READER, wrong)
    assert str(tuple(wrong.id)) in str(refused.value)


def test_nothing_beyond_the_credit_is_taken() -> None:
    reader = ReaderClient("reader-0", RecordedConnection().connection, 4)
    with pytest.raises(ValueError, match="up to 0"):
        reader.require_granted(GOOD)
    reader.send_credit(0.0)
    reader.require_granted(dataclasses.replace(GOOD, sequence=4))
    with pytest.raises(ValueError, match="delivery 5; it may send those up to 4"):
        reader.require_granted(dataclasses.replace(GOOD, sequence=5))
