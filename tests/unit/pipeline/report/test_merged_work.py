"""The trainers' work in a center's merges: by sync node's counts, over several slices, against the ledger."""

from __future__ import annotations

from typing import Any

from shadowsync.pipeline.report.merged_work import MergedWork, merged_counts, merged_work, merges_of


def test_counts_of_a_sync_node_come_back() -> None:
    late: dict[str, Any] = {"missed_merges": 30, "late_seconds": 2.5, "most_late_seconds": 1.5}
    counts = merged_counts("trainer-0", 640, 10, **late) | merged_counts("trainer-1", 0, 0) | {"merges": 10}
    assert merged_work(counts) == {
        "trainer-0": MergedWork(examples=640, merges=10, **late),
        "trainer-1": MergedWork(examples=0, merges=0),
    }
    assert merged_work({"applied_slices": 7}) == {}
    assert merged_work(counts)["trainer-0"].share == 0.25
    assert merged_work(counts)["trainer-1"].share is None


def test_of_several_slices_the_one_with_the_least_counts() -> None:
    nodes = {
        "sync-0": merged_counts("trainer-0", 640, 10) | {"merges": 12, "late_merges": 3},
        "sync-1": merged_counts("trainer-0", 512, 8) | {"merges": 9, "late_merges": 1},
    }
    merges = merges_of(nodes, {"trainer-0": 700})
    assert merges is not None
    assert (merges.number, merges.late) == (9, 1)
    assert merges.trainers == {"trainer-0": MergedWork(examples=512, merges=8, unmerged_examples=188)}


def test_without_merges_there_is_nothing() -> None:
    assert merges_of({"sync-0": {"applied_slices": 7}}, {"trainer-0": 700}) is None
