"""What a sync node counts of trainers that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.nodes.sync.role import SyncRole
from shadowsync.pipeline.wire.control.orders import NodeLost


@pytest.mark.parametrize(("left", "orphaned"), [(True, 0), (False, 2)])
def test_only_of_a_trainer_that_died_it_is_unknown_whether_it_had_the_last_answers(
    left: bool, orphaned: int
) -> None:
    forgotten: list[str] = []

    def forget(token: str) -> int:
        forgotten.append(token)
        return 2

    role = SyncRole(cast(Any, None), cast(Any, None))
    role._forget(
        cast(Any, SimpleNamespace(state=SimpleNamespace(forget=forget))),
        NodeLost("token", "trainer", "trainer-1", left),
    )
    assert role.metrics()["orphaned_slices"] == orphaned
    assert forgotten == ["token"], "it is refused from then on in any case"
