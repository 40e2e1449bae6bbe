"""No synchronization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from shadowsync.sync_algos.base import ModelOrigin
from shadowsync.sync_algos.none import NoSync


def test_a_round_is_never_complete_and_changes_nothing(make_cluster: Callable[..., Any]) -> None:
    cluster = make_cluster("none")
    before, center = cluster.replicas[0].values.clone(), cluster.center.values.clone()
    assert cluster.round() is False
    assert torch.equal(cluster.replicas[0].values, before)
    assert torch.equal(cluster.center.values, center)
    assert cluster.center.exchanges == 0


def test_what_it_declares() -> None:
    assert not NoSync.needs_center
    assert NoSync.model is ModelOrigin.REPLICAS


def test_it_has_no_center(make_cluster: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="NoSync has no center"):
        make_cluster("none").algorithm.center_rule(torch.zeros(1), torch.zeros(1))
