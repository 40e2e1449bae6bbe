"""No synchronization."""

from __future__ import annotations

import pytest
import torch
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.sync_algos.memory.cluster import MemoryCluster


def test_a_round_is_never_complete_and_changes_nothing() -> None:
    cluster = MemoryCluster(lambda: make_algorithm("none", {}), torch.zeros(3), 2)
    cluster.replicas[0].values.fill_(4.0)
    assert cluster.round() == {0: False, 1: False}
    assert [replica.values.tolist() for replica in cluster.replicas] == [[4.0] * 3, [0.0] * 3]
    assert cluster.center.exchanges == 0


def test_it_has_no_center() -> None:
    with pytest.raises(TypeError, match="NoSync has no center"):
        make_algorithm("none", {}).center_rule(torch.zeros(1), torch.zeros(1))
