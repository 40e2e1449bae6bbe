"""Whom a hub awaits, without I/O; and which hub of a launch a part joins."""

from __future__ import annotations

import threading

import pytest
from shadowsync.attached import torchrun
from shadowsync.attached.errors import AttachError
from shadowsync.attached.hub.expected_members import ExpectedMembers
from shadowsync.attached.hub.members import CLIENT, LOOP
from shadowsync.attached.torchrun import LaunchHubs


def test_a_hub_is_over_when_all_who_are_expected_have_come_and_left() -> None:
    expected = ExpectedMembers()
    expected.expect(LOOP, 2)
    expected.expect(CLIENT, 2)
    assert not expected.is_over
    # Parts of one process count apart: two of them are not two processes.
    for loops, modules, there, over in (
        (1, 1, {LOOP: 1, CLIENT: 1}, False),
        (1, 1, {}, False),
        (2, 1, {LOOP: 1}, False),
        (2, 1, {}, False),
        (2, 2, {CLIENT: 1}, False),
        (2, 2, {}, True),
    ):
        assert expected.update(0.0, {LOOP: loops, CLIENT: modules}, there, 60.0) == {}
        assert expected.is_over == over


def test_without_anyone_expected_the_first_who_leaves_may_be_the_last() -> None:
    expected = ExpectedMembers()
    assert not expected.is_over
    expected.update(0.0, {LOOP: 1}, {LOOP: 1}, 60.0)
    assert not expected.is_over
    expected.update(0.0, {LOOP: 1}, {}, 60.0)
    assert expected.is_over


def test_who_does_not_come_is_given_up() -> None:
    expected = ExpectedMembers()
    expected.expect(LOOP, 3)
    # Nobody has come: the process that expects them is still on its way.
    assert expected.update(0.0, {}, {}, 5.0) == {}
    assert expected.update(100.0, {LOOP: 1}, {LOOP: 1}, 5.0) == {}
    assert expected.update(200.0, {LOOP: 1}, {}, 5.0) == {}
    # One that comes meanwhile begins the wait anew.
    assert expected.update(204.0, {LOOP: 2}, {LOOP: 1}, 5.0) == {}
    assert expected.update(206.0, {LOOP: 2}, {}, 5.0) == {}
    assert expected.update(210.9, {LOOP: 2}, {}, 5.0) == {}
    assert not expected.is_over
    assert expected.update(211.0, {LOOP: 2}, {}, 5.0) == {LOOP: 1}
    assert expected.is_over


def test_rank_0_waits_for_one_kind_and_no_longer_than_the_hub() -> None:
    expected = ExpectedMembers()
    expected.expect(LOOP, 1)
    expected.expect(CLIENT, 1)
    waits = {role: threading.Thread(target=expected.await_gone, args=(role,)) for role in (LOOP, CLIENT)}
    for wait in waits.values():
        wait.start()
    expected.update(0.0, {LOOP: 1, CLIENT: 1}, {CLIENT: 1}, 60.0)
    waits[LOOP].join(60)
    assert not waits[LOOP].is_alive()
    assert waits[CLIENT].is_alive()
    expected.end()
    waits[CLIENT].join(60)
    assert not waits[CLIENT].is_alive()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> LaunchHubs:
    """The hubs of rank 1; the addresses that rank 0 tells are their keys."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun, "_published", lambda key, _: key)
    return LaunchHubs()


def test_a_loop_and_a_module_that_are_there_at_once_share_a_hub(launch: LaunchHubs) -> None:
    def join(part: str) -> tuple[torchrun.HubSlot, str]:
        joining = launch.join(part, {}, 1.0)
        return joining, joining.endpoint.removeprefix("shadowsync/hub/0/")

    for number, (first, second) in ((1, (CLIENT, LOOP)), (3, (LOOP, CLIENT))):
        (one, at), (other, beside) = join(first), join(second)
        assert {at, beside} == {f"{number}", f"{number}/loops"}
        one.leave()
        # A hub has one of each kind, whether that is still there or not; it is over with its last part.
        again, elsewhere = join(first)
        assert elsewhere.partition("/")[0] == f"{number + 1}"
        again.leave()
        other.leave()
    # Two of a kind at once have two hubs, and so have parts that are not there at the same time, the control.
    kept = [join(CLIENT) for _ in range(2)]
    assert [address for _, address in kept] == ["5", "6"]
    for one, _ in kept:
        one.leave()
    assert join(LOOP)[1] == "7/loops"


def test_a_part_that_could_not_join_may_try_again(launch: LaunchHubs) -> None:
    one = launch.join(LOOP, {}, 1.0)
    one.withdraw()
    assert launch.join(LOOP, {}, 1.0).endpoint == one.endpoint


def test_settings_of_rows_come_too_late_after_the_tables() -> None:
    torchrun._require_rows({"codecs.gradients": "float32", "codecs.center_up": "bfloat16"})
    with pytest.raises(AttachError, match=r"codecs\.vectors: .* call attach before shadowsync\.Embeddings"):
        torchrun._require_rows({"codecs.vectors": "bfloat16"})


def test_the_variables_of_torchrun_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(AttachError, match=r"WORLD_SIZE.* not set, from which env://"):
        LaunchHubs().join(LOOP, {}, 1.0)
