"""A node that was declared dead and lives: how long it may come back before it is replaced."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from shadowsync.nodes.supervisor.silent_nodes import SilentNodes
from shadowsync.pipeline.config.sections import RunSection


@pytest.mark.parametrize(("rejoin_seconds", "patience_seconds"), [(60.0, 15.0), (20.0, 10.0)])
def test_it_is_killed_unless_it_comes_back(rejoin_seconds: float, patience_seconds: float) -> None:
    silent = SilentNodes(RunSection(node_timeout_seconds=15.0, rejoin_seconds=rejoin_seconds))
    told: list[tuple[str, int]] = []

    def node(token: str) -> Any:
        return SimpleNamespace(token=token, signal=lambda number: told.append((token, number)))

    nodes = [node("e0"), node("e1")]
    # When it is asked, and who is dead then: one comes back, and later it is silent once more.
    late = patience_seconds + 1.0
    for now, dead in ((0.0, ["e0", "e1"]), (patience_seconds - 1.0, ["e1"]), (late, ["e0", "e1"])):
        assert told == []
        silent.end(dead, nodes, now)
    assert told == [("e1", signal.SIGKILL)]
