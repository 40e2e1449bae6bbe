"""The state of a hub without I/O: who is who, whose parameters differ, and the book of steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.ledger import ENDED, LEDGER_FILE, HubLedger
from shadowsync.attached.hub.state import HubState, first_difference
from shadowsync.attached.job import loop_job, require_settings
from shadowsync.nodes.control.membership import Member
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.pipeline.models.training.flat import FlatLayout
from shadowsync.pipeline.wire.control.loops import ParameterShape
from shadowsync.pipeline.wire.control.messages import Hello, NodeFacts
from shadowsync.pipeline.wire.field_checks import Counts
from torch import nn

LAYOUT = (ParameterShape("a", (2, 3)), ParameterShape("b", (3,)))


def state(**settings: Any) -> HubState:
    return HubState(loop_job({name.replace("__", "."): value for name, value in settings.items()}))


def hello(own: HubState, token: str, role: str = "trainer") -> Member:
    return own.members.join(Hello(role, token, "", f"tcp://127.0.0.1:1{token}", 1, "host"))


def begun(own: HubState, token: str, **facts: Any) -> Member:
    member = hello(own, token)
    own.get_ready(member, NodeFacts(dense_elements=32, **facts))
    own.begin(member)
    return member


def test_loops_get_indices_that_nobody_had() -> None:
    own = state()
    assert [hello(own, token).info.index for token in "123"] == [0, 1, 2]
    own.lose(own.members.require("2"), "was silent")
    assert hello(own, "4").info.name == "loop-3"
    # A repeated hello is the same member; one that was declared dead must come anew.
    assert hello(own, "1").info.index == 0
    with pytest.raises(ClusterError, match="was declared dead"):
        hello(own, "2")
    with pytest.raises(ClusterError, match=r"loop-1 was declared dead \(was silent\)"):
        own.members.require("2")


def test_a_loop_has_as_many_elements_as_its_parameters() -> None:
    """Otherwise no checkpoint could be made of what it sends."""
    own = state()
    member = hello(own, "1")
    own.offer(member, LAYOUT)
    for wrong in (0, 9, 16, 33, 2**62):
        with pytest.raises(ClusterError, match=f"{wrong} elements; the parameters have 32"):
            own.get_ready(member, NodeFacts(dense_elements=wrong))
    assert not member.ready
    module = nn.Module()
    for one in LAYOUT:
        module.register_parameter(one.name, nn.Parameter(torch.zeros(one.shape)))
    own.get_ready(member, NodeFacts(dense_elements=FlatLayout(module).numel))
    assert member.ready


def test_who_does_not_belong_to_a_hub() -> None:
    own = state(sync__nodes=1)
    hello(own, "1", "sync")
    with pytest.raises(ClusterError, match="already has its 1 sync nodes"):
        hello(own, "2", "sync")
    with pytest.raises(ClusterError, match="a hub has no 'reader'"):
        hello(own, "3", "reader")


def test_the_first_loop_starts_from_its_own_weights() -> None:
    own = state()
    first, second = hello(own, "1"), hello(own, "2")
    for member in (first, second):
        own.get_ready(member, NodeFacts(needs_center=True))
    assert own.is_first(first)
    assert own.is_first(second)
    own.seeded = True
    # The center has weights, even when all loops have gone.
    assert not own.is_first(second)


def test_without_a_center_the_loops_that_are_there_have_the_weights() -> None:
    own = state(sync__algorithm="ma")
    first = begun(own, "1", needs_peers=True)
    second = hello(own, "2")
    own.get_ready(second, NodeFacts(needs_peers=True))
    assert not own.is_first(second)
    own.lose(first, "")
    assert own.is_first(second)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ((ParameterShape("a", (2, 3)), ParameterShape("b", (4,))), "b [4] here, b [3] there"),
        ((ParameterShape("x", (2, 3)), *LAYOUT[1:]), "x [2, 3] here, a [2, 3] there"),
        (LAYOUT[:1], "b [3] is only there"),
        ((*LAYOUT, ParameterShape("c", ())), "c [] is only here"),
    ],
)
def test_the_first_parameter_that_differs_is_named(
    other: tuple[ParameterShape, ...], difference: str
) -> None:
    assert first_difference(other, LAYOUT) == difference
    assert first_difference(LAYOUT, LAYOUT) == ""
    own = state()
    first, second = hello(own, "1"), hello(own, "2")
    own.offer(first, LAYOUT)
    with pytest.raises(ClusterError, match="differ from those of loop-0"):
        own.offer(second, other)
    # Once nobody is there who has it, and no center does, another layout is the first one.
    own.lose(first, "was silent")
    own.offer(second, other)


def test_the_book_says_what_was_synchronized_and_what_died() -> None:
    own = state()
    first, second, third = (begun(own, token) for token in "123")
    counts: Counts = {"iterations": 10, "synced_iterations": 10, "rounds": 4}
    fewer: Counts = {"synced_iterations": 7}
    own.heartbeat(first, counts)
    own.heartbeat(second, counts | fewer)
    own.heartbeat(third, {"iterations": 3})
    own.lose(first, "")
    own.lose(second, "was silent for 15 s")
    found = [(one.state, one.steps, one.synchronized, one.why) for one in own.book().loops]
    assert found == [
        ("left", 10, 10, ""),
        ("died", 10, 7, "was silent for 15 s"),
        ("training", 3, 0, ""),
    ]
    assert own.loops == [third]


def test_a_loop_that_pauses_is_out_of_the_group_until_it_comes_back() -> None:
    own = state(sync__algorithm="ma")
    members = [begun(own, token, needs_peers=True) for token in "12"]
    own.group.form([0, 1])
    view = own.pause(members[1], paused=True)
    assert view is not None
    assert view.members == (0,)
    assert own.is_paused(members[1])
    back = own.pause(members[1], paused=False)
    assert back is not None
    assert back.members == (0, 1)
    assert back.generation > view.generation
    # One that cannot take part in this generation gets another.
    assert own.return_to_group(members[0]).generation > back.generation


def test_settings_that_are_not_the_hubs_are_named() -> None:
    job = loop_job({"sync.algorithm": "easgd", "sync.gap": 4}, ["codecs.center_up=bfloat16"])
    require_settings(job, {"sync.gap": 4, "codecs.center_up": "bfloat16", "sync.mode": "shadow"})
    with pytest.raises(AttachError, match=r"sync\.gap: the loop wants 5, and the hub has 4"):
        require_settings(job, {"sync.gap": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trainer.count": 2}, r"trainer\.count: is no setting of attached loops"),
        ({"sync.algorithm": "nothing"}, "nothing"),
        ({"sync.optimizer_state": "synchronized"}, r"sync\.optimizer_state"),
        ({"sync.gapp": 2}, "gapp"),
        ({"sync.algorithm": "ds_sync", "codecs.peers_up": "int8"}, "the groups of ds_sync change"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        loop_job(settings)


def test_an_algorithm_without_a_center_has_no_sync_nodes() -> None:
    assert loop_job({"sync.algorithm": "ma"}).sync_nodes == 0
    assert loop_job({}).sync_nodes == 1


def test_modules_with_tables_and_their_nodes() -> None:
    own = state()
    assert own.present == {"trainer": 0, "client": 0}
    assert [hello(own, token, "client").info.name for token in "12"] == ["tables-0", "tables-1"]
    own.begin(own.members.require("1"))
    assert own.begun
    own.lose(own.members.require("1"), "was silent")
    assert own.present == {"trainer": 0, "client": 1}
    own.lose(own.members.require("2"), "")
    assert own.present == {"trainer": 0, "client": 0}
    assert own.arrived == {"trainer": 0, "client": 2}
    # A module never gets the index of a dead one, whose pushes have it. A node that failed is replaced.
    assert hello(own, "3", "client").info.index == 2
    assert hello(own, "4", "embedding").info.index == 0
    own.lose(own.members.require("4"), "failed: memory")
    assert [hello(own, token, "embedding").info.index for token in "56"] == [0, 1]


def saved_and_restored(own: HubState) -> HubState:
    """Another hub with what the first one recorded, through JSON."""
    other = state(sync__nodes=1)
    other.restore(json.loads(json.dumps(own.saved())))
    return other


def test_another_hub_knows_the_loops_of_a_dead_one() -> None:
    own = state(sync__nodes=1)
    for token in "abc":
        own.offer(begun(own, token), LAYOUT)
    own.heartbeat(own.members.require("a"), {"iterations": 9, "synced_iterations": 7, "rounds": 2})
    own.lose(own.members.require("b"), "was silent")
    own.lose(own.members.require("c"), "")
    own = saved_and_restored(own)
    assert own.awaits_return
    assert [(one.name, one.state, one.steps, one.synchronized) for one in own.book().loops] == [
        ("loop-0", "away", 9, 7),
        ("loop-1", "died", 0, 0),
        ("loop-2", "left", 0, 0),
    ]
    assert own.loops == own.members.living() == []
    with pytest.raises(ClusterError, match="not a member of this hub"):
        own.members.require("a")
    # It comes back with another token, as the loop that it was; its model must still be the same.
    back = hello(own, "a.1")
    assert (back.info.name, back.info.index, back.count("iterations")) == ("loop-0", 0, 9)
    assert own.members.returned() == [back]
    assert own.members.away() == []
    with pytest.raises(ClusterError, match=r"of the loops before: b \[3\] here, a \[2, 3\] there"):
        own.offer(hello(own, "d"), LAYOUT[1:])
    # One that nobody knew is new.
    assert hello(own, "e.1").info.name == "loop-4"
    # One that was declared dead may come back, too; one that left may not.
    assert hello(own, "b.1").info.name == "loop-1"
    assert hello(own, "c.1").info.name == "loop-5"
    # It goes on from a hub that dies before it was ready.
    again = saved_and_restored(own)
    assert hello(again, "a.2").info.name == "loop-0"


def test_another_hub_knows_the_modules_of_a_dead_one() -> None:
    own = state(sync__nodes=1)
    for token in "ab":
        own.begin(hello(own, token, "client"))
    own.heartbeat(own.members.require("a"), {"passes": 9})
    own.lost_passes["tables-0"] = 4
    own.lose(own.members.require("b"), "")
    own = saved_and_restored(own)
    # Its loops need not wait for modules; it does not end before these may come back.
    assert (own.awaits_return, own.awaits_anyone, own.members.away()) == (False, True, [])
    assert [(one.name, one.state, one.passes, one.lost) for one in own.book().modules] == [
        ("tables-0", "away", 9, 4),
        ("tables-1", "left", 0, 0),
    ]
    assert own.book().loops == ()
    # Its index goes on, too: the numbers of its passes have it.
    back = hello(own, "a.1", "client")
    assert (back.info.name, back.info.index, back.info.role) == ("tables-0", 0, "client")
    assert own.members.returned("client") == [back]
    assert own.members.returned() == []
    assert not own.awaits_anyone
    assert hello(own, "c", "client").info.name == "tables-2"
    # A loop with the token of a module is another one, the control.
    assert hello(own, "b.1").info.name == "loop-0"


def test_a_hub_whose_loops_come_after_its_modules_takes_their_settings() -> None:
    own = state(sync__algorithm="none")
    own.begin(hello(own, "a", "client"))
    with pytest.raises(ClusterError, match="already has its 0 sync nodes"):
        hello(own, "1", "sync")
    own.take_loops(loop_job({"sync.nodes": 1, "sync.gap": 7}))
    assert not own.has_sync_nodes
    own.begin(hello(own, "2", "sync"))
    assert own.has_sync_nodes
    begun(own, "3", needs_center=True)
    assert own.job.sync.gap == 7


def test_a_loop_that_takes_part_is_not_replaced() -> None:
    own = state()
    begun(own, "a")
    with pytest.raises(ClusterError, match="loop-0 still takes part"):
        hello(own, "a.1")


def test_the_ledger_of_a_hub(tmp_path: Path) -> None:
    async def write() -> None:
        ledger = HubLedger(tmp_path, new=True)
        await ledger.write({"a": [1, 2], "b": {"x": None}})
        await ledger.write({"a": [3]})
        # Not closed: its process died.
        other = HubLedger.open(tmp_path)
        assert other.read() == {"a": [3], "b": {"x": None}}
        await other.write({ENDED: True})
        other.close()
        ledger.close()

    asyncio.run(write())
    assert (tmp_path / LEDGER_FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(ClusterError, match="the hub of this folder has ended"):
        HubLedger.open(tmp_path)
    with pytest.raises(ClusterError, match="is not the folder of a hub"):
        HubLedger.open(tmp_path / "nowhere")
