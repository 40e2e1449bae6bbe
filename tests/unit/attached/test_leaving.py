"""How a loop leaves: it has the mean of all, though another loop that leaves ends the first try."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from shadowsync.attached.parameters import LoopParameters
from shadowsync.attached.role import CLOSING_ROUNDS, LoopRole
from shadowsync.nodes.shadow.synchronizer import FinalizeResult
from shadowsync.pipeline.wire.control.loops import LoopsReply
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.tests.support.loops.attached_loops import small_model


class Ending:
    """A synchronizer whose closing rounds and means end as a list says: (complete, ready) each."""

    def __init__(self, ends: Sequence[tuple[bool, bool]]) -> None:
        self._ends = list(ends)
        self.closing: list[bool] = []
        self._model: torch.Tensor | None = None
        # Its shadow thread.
        self.shadow = self

    async def finalize(self, *, closing_round: bool) -> FinalizeResult:
        self.closing.append(closing_round)
        complete, ready = self._ends.pop(0)
        self._model = torch.ones(3) if ready else None
        return FinalizeResult(complete and closing_round, ready, "", 1)

    async def model(self) -> torch.Tensor | None:
        return self._model

    def pause(self) -> None:
        pass

    async def wait_idle(self) -> None:
        pass


class Coordinator:
    """A hub that answers."""

    async def call(self, request: object, *, timeout_seconds: float) -> LoopsReply:  # noqa: ARG002
        return LoopsReply(())


class HubNode:
    """The node of a loop."""

    coordinator = Coordinator()


def left(algorithm: str, ends: Sequence[tuple[bool, bool]]) -> tuple[LoopRole, list[bool]]:
    """The role once it has left, and for each try whether it made a closing round."""
    role, sync = LoopRole(LoopParameters(small_model()), {}, "cluster"), Ending(ends)
    fakes: dict[str, Any] = {"_node": HubNode(), "_sync": sync}
    vars(role).update(fakes, _algorithm=make_algorithm(algorithm, {}))
    asyncio.run(role.leave(closing_round=True))
    return role, sync.closing


@pytest.mark.parametrize(
    ("ends", "closing"),
    [
        ([(True, True)], [True]),
        ([(False, False), (True, True)], [True, True]),
        # The closing round was complete, and the mean was not: only that is made again.
        ([(True, False), (False, True)], [True, False]),
    ],
)
def test_the_mean_is_there_after_the_block(ends: list[tuple[bool, bool]], closing: list[bool]) -> None:
    role, tries = left("ma", ends)
    assert tries == closing
    assert role.is_complete
    assert role.last_model is not None


def test_without_a_mean_in_so_many_tries_there_is_none() -> None:
    """The control."""
    role, tries = left("ma", [(True, False)] * CLOSING_ROUNDS)
    assert len(tries) == CLOSING_ROUNDS
    assert role.is_complete
    assert role.last_model is None


def test_algorithms_without_a_mean_make_one_closing_round() -> None:
    role, tries = left("ds_sync", [(True, False)])
    assert tries == [True]
    assert role.is_complete
