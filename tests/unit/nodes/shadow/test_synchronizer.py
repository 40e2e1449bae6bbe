"""What a trainer's control thread gets of its synchronization while rounds go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from shadowsync.nodes.shadow.synchronizer import Synchronizer
from shadowsync.sync_algos.base import ModelOrigin


class Between:
    """Stands for the shadow thread: whether its loop runs what it was given, between steps of a round."""

    def __init__(self) -> None:
        self.runs = False

    async def between_steps(self, work: Callable[[], Any]) -> Any:
        """As the thread does."""
        self.runs = True
        try:
            return work()
        finally:
            self.runs = False


def test_a_global_model_is_copied_where_no_round_changes_it() -> None:
    shadow, held = Between(), torch.arange(6.0)
    copied_between: list[bool] = []

    def global_model() -> torch.Tensor:
        copied_between.append(shadow.runs)
        return held

    own = Synchronizer.__new__(Synchronizer)
    own.shadow, own._model = cast(Any, shadow), None
    own._algorithm = cast(Any, SimpleNamespace(model=ModelOrigin.GLOBAL, global_model=global_model))
    own._context = cast(Any, SimpleNamespace(layout=SimpleNamespace(numel=4)))
    model = asyncio.run(own.model())
    assert model is not None
    held.zero_()
    assert torch.equal(model, torch.arange(4.0))
    assert copied_between == [True]
