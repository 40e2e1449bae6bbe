"""The checkpoint of a hub's end: before its last loops go, and of a center that outlives them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from shadowsync.attached.hub.server import HubServer
from shadowsync.attached.job import loop_job
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.wire.control.messages import Hello, Leave, NodeFacts
from shadowsync.pipeline.wire.control.orders import FinishReply


class Hub(HubServer):
    """A hub with loops that end when they are told to, and what loops each of its checkpoints had."""

    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__(NodeSettings(loop_job({}), bind="127.0.0.1", folder=folder))
        self.saved: list[list[str]] = []
        self.checkpoint = self._save
        for name in names:
            self.add(name)

    def add(self, token: str) -> None:
        member = self.state.members.join(Hello("trainer", token, "", "tcp://127.0.0.1:1", 1, "host"))
        self.state.get_ready(member, NodeFacts(dense_elements=0, model_origin="center"))
        self.state.begin(member)

    async def _save(self) -> None:
        self.saved.append([loop.info.token for loop in self.state.loops])
        await asyncio.sleep(0)

    async def finish(self, member: Member, seconds: float) -> FinishReply | None:  # noqa: ARG002
        # The others' requests come meanwhile.
        await asyncio.sleep(0)
        return None

    async def leave(self, *tokens: str) -> None:
        """Have loops leave at the same time, and wait until they have."""
        for token in tokens:
            await self.answer(token, Leave(), 1)
        gone = [self.state.members.require(token) for token in tokens]
        await self.wait_for(lambda: not any(member.alive for member in gone))


async def saved_after(hub: Hub, leaving: Sequence[Sequence[str]], died: Sequence[str]) -> list[list[str]]:
    for tokens in leaving:
        await asyncio.wait_for(hub.leave(*tokens), 60)
    for token in died:
        hub.mark_dead(token, "killed")
    await hub.end_all()
    await hub.close()
    return hub.saved


@pytest.mark.parametrize(
    ("leaving", "died", "saved"),
    [
        ([["a"], ["b"]], [], [["b"]]),
        ([["a", "b"]], [], [["a", "b"]]),
        # Of no loop, but the center has what they trained.
        ([["a"]], ["b"], [[]]),
        ([], ["a", "b"], [[]]),
        # The control: the loops that stay are those of the end.
        ([["a"]], [], [["b"]]),
    ],
)
def test_the_last_checkpoint(
    tmp_path: Path, leaving: list[list[str]], died: list[str], saved: list[list[str]]
) -> None:
    async def run() -> list[list[str]]:
        return await saved_after(Hub(tmp_path, "a", "b"), leaving, died)

    assert asyncio.run(run()) == saved


def test_a_loop_that_comes_later_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    async def run() -> list[list[str]]:
        hub = Hub(tmp_path, "a", "b")
        await asyncio.wait_for(hub.leave("a", "b"), 60)
        hub.add("c")
        return await saved_after(hub, [["c"]], [])

    assert asyncio.run(run()) == [["a", "b"], ["c"]]
