"""Counts of ids without a trained row."""

import numpy as np
from shadowsync.pipeline.config.tables import Growth, TableSettings
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.saved_model.untrained_ids import UntrainedIds, untrained_lines
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.tables.tables import make_table


def table(name: str, pooling: str, growth: Growth | None) -> TableSettings:
    return make_table(name, 8, 4, pooling=pooling, growth=growth)


def test_counts_of_batches_add_up_and_hashed_tables_do_not_know() -> None:
    ids = UntrainedIds(["user", "day", "tags"])
    ids.add({"user": (3, 1), "tags": (0, 0)})
    ids.add({"user": (5, 1), "tags": (0, 0)})
    assert ids.as_dict() == {
        "user": {"ids": 8, "untrained": 2},
        "day": None,
        "tags": {"ids": 0, "untrained": 0},
    }
    assert untrained_lines(ids.as_dict()) == [
        "2 of 8 ids of user had no trained row (25.0%)",
        "0 of 0 ids of tags had no trained row",
        "not known of hashed tables, where ids share rows: day",
    ]


def test_each_growing_table_has_its_own_keys_also_of_lists() -> None:
    grows = Growth(1, "never", 0)
    tables = [
        table("day", "", None),
        table("words", "sum", None),
        table("user", "", grows),
        table("tags", "mean", grows),
    ]
    batch = Batch(
        BatchId(0, 0, 0, 0),
        labels=np.zeros(2, np.float32),
        dense=np.zeros((2, 0), np.float32),
        rows=np.zeros((2, 2), np.int32),
        bag_rows=np.zeros(5, np.int32),
        bag_lengths=np.array([[1, 1], [0, 3]], np.int32),
        keys=np.array([[7, 8]], np.uint64),
        bag_keys=np.array([0, 0, 1, 2, 3], np.uint64),
    )
    keys = ShardRouter(TablePlan.make(tables, 1)).keys_of(batch)
    assert {name: own.tolist() for name, own in keys.items()} == {"user": [7, 8], "tags": [1, 2, 3]}
