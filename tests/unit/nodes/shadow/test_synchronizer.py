"""What a trainer's control thread gets of its synchronization while rounds go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.sync_algos.base import ModelOrigin
from shadowsync.tests.support.sync.made_synchronizer import made_synchronizer


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

    algorithm = SimpleNamespace(
        model=ModelOrigin.GLOBAL, global_model=global_model, state_names=(), start=lambda _: None
    )
    context = SimpleNamespace(
        layout=SimpleNamespace(numel=4),
        job=SimpleNamespace(sync=SyncSection()),
        replica=None,
        total_iterations=lambda: 0,
    )
    own = made_synchronizer(context, algorithm)
    own.shadow = cast(Any, shadow)
    model = asyncio.run(own.model())
    assert model is not None
    held.zero_()
    assert torch.equal(model, torch.arange(4.0))
    assert copied_between == [True]
