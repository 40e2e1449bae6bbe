"""What a trainer's control thread gets of its synchronization while rounds go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.sync_algos.base import ModelOrigin, PeerLost, Slice
from shadowsync.sync_algos.decoupled import Decoupled, DecoupledOptions
from shadowsync.sync_algos.memory.center import MemoryReplica
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


def replica_context(replica: Any) -> SimpleNamespace:
    """A trainer's replica, and as much of its job as a synchronizer asks for."""
    return SimpleNamespace(
        layout=SimpleNamespace(numel=4),
        job=SimpleNamespace(sync=SyncSection()),
        replica=replica,
        total_iterations=lambda: 0,
    )


def test_a_global_model_is_copied_where_no_round_changes_it() -> None:
    shadow, held = Between(), torch.arange(6.0)
    copied_between: list[bool] = []

    def global_model() -> torch.Tensor:
        copied_between.append(shadow.runs)
        return held

    algorithm = SimpleNamespace(
        model=ModelOrigin.GLOBAL, global_model=global_model, state_names=(), start=lambda _: None
    )
    own = made_synchronizer(replica_context(None), algorithm)
    own.shadow = cast(Any, shadow)
    model = asyncio.run(own.model())
    assert model is not None
    held.zero_()
    assert torch.equal(model, torch.arange(4.0))
    assert copied_between == [True]


class ReplacedCenter:
    """A node that answers nothing, until it does; and whose replacement does not answer a seed."""

    is_exact = False

    def __init__(self, elements: int) -> None:
        self.slices = (Slice(0, elements),)
        self.answers = False
        self.sent: torch.Tensor | None = None

    async def exchange(self, part: Slice, values: torch.Tensor, examples: int) -> torch.Tensor:  # noqa: ARG002
        self.sent = values
        return await self.resume_exchange(part)

    async def resume_exchange(self, part: Slice) -> torch.Tensor:
        if self.sent is None:
            raise RuntimeError("the last exchange was answered, or the node was replaced")
        if not self.answers:
            raise PeerLost("it is silent")
        return torch.zeros(part.stop - part.start)

    def lost(self, part: Slice) -> torch.Tensor:
        return torch.zeros(part.stop - part.start)

    async def replace(self, number: int, member: MemberInfo) -> None:  # noqa: ARG002
        self.sent = None

    async def seed(self, first: torch.Tensor, number: int, *, is_kept: bool) -> None:  # noqa: ARG002
        raise PeerLost("it is silent, too")


def test_after_a_replacement_that_does_not_answer_the_seed_rounds_go_on() -> None:
    """The exchange under way was with the dead node: no later round may resume it."""
    replica, algorithm, center = (
        MemoryReplica(torch.ones(4)),
        Decoupled(DecoupledOptions()),
        ReplacedCenter(4),
    )
    own = made_synchronizer(replica_context(replica), algorithm)
    peers = cast(Any, SimpleNamespace(center=center))
    own.shadow = cast(Any, SimpleNamespace(run_between_rounds=lambda work: work(peers)))

    async def lives_on() -> None:
        replica.trained_examples = 8
        assert not await algorithm.round(replica, peers)
        with pytest.raises(PeerLost):
            await own.replace(0, MemberInfo("sync-0", "sync", 0, "another", ""))
        center.answers = True
        replica.values.add_(1.0)
        replica.trained_examples = 16
        assert await algorithm.round(replica, peers)
        assert torch.equal(cast(torch.Tensor, center.sent), torch.ones(4)), (
            "what was trained since, and no more"
        )

    asyncio.run(lives_on())
