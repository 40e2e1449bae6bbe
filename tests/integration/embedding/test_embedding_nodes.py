"""Whole jobs whose embedding nodes have several threads, rows of bfloat16, lazy Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.tests.support.jobs.deterministic import STEPS, deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import RunFolder

pytestmark = pytest.mark.matrix

NONE = {"algorithm": "none"}


@pytest.mark.parametrize(
    "settings", [{}, {"storage": "bfloat16", "optimizer": "adam"}], ids=["float32", "bfloat16, adam"]
)
def test_threads_change_no_bit_of_a_deterministic_job(
    cluster: ClusterMaker, settings: dict[str, Any]
) -> None:
    def with_threads(threads: int) -> RunFolder:
        changes = {"sync": NONE, "embedding": {**settings, "threads": threads}}
        return finished(cluster, deterministic(changes, 1, f"threads-{threads}"))

    one, two = with_threads(1), with_threads(2)
    assert was_trained(one)
    assert one.batches() == two.batches() == STEPS
    # That another seed gives other bytes is in test_deterministic.
    assert digests(one) == digests(two)


def test_bfloat16_with_lazy_adam_learns_what_float32_learns(cluster: ClusterMaker) -> None:
    def quality(name: str, **settings: Any) -> float:
        changes = {"embedding": {"optimizer": "adam", "lr": 0.002, "threads": 2, **settings}, "sync": NONE}
        result = finished(cluster, deterministic(changes, 1, name))
        folder, manifest = open_checkpoint(result.folder, verify=True)
        saved = SavedTables(folder, manifest)
        steps = saved.read_state("C1", 0, saved.rows("C1"))["adam_steps"]
        # The most frequent row of the table is in nearly every batch.
        assert 0.9 * STEPS < steps.max() <= STEPS
        assert (saved.read("C1", 0, saved.rows("C1")).view(np.uint32) & 0xFFFF).any() == (
            settings.get("storage") != "bfloat16"
        )
        return result.ne

    wide = quality("wide")
    narrow = quality("narrow", storage="bfloat16")
    # The control: rows that hardly move.
    still = quality("still", lr=1e-9)
    assert abs(narrow - wide) < 0.1 * abs(still - wide)
