"""Who is in the job, and who is refused and why."""

from __future__ import annotations

import pytest
from shadowsync.nodes.control.membership import Membership
from shadowsync.nodes.coordinator.state.verdicts import missing_nodes
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.messages import NodeFacts

DIGEST = "d1"


@pytest.fixture
def members() -> Membership:
    return Membership({"reader": 1, "trainer": 2}, DIGEST)


def join(members: Membership, role: str, token: str) -> str:
    return members.join(role, token, DIGEST, f"tcp://127.0.0.1:{len(token)}").info.name


def test_nodes_are_numbered_as_they_come(members: Membership) -> None:
    assert join(members, "trainer", "t1") == "trainer-0"
    assert join(members, "reader", "r") == "reader-0"
    assert join(members, "trainer", "t2") == "trainer-1"
    info = members.require("t2").info
    assert (info.role, info.index, info.token, info.endpoint) == ("trainer", 1, "t2", "tcp://127.0.0.1:2")
    assert [member.info.name for member in members.alive()] == ["reader-0", "trainer-0", "trainer-1"]
    assert [member.info.name for member in members.alive("trainer")] == ["trainer-0", "trainer-1"]


def test_a_repeated_hello_is_the_same_member(members: Membership) -> None:
    first = members.join("trainer", "t1", DIGEST, "")
    assert members.join("trainer", "t1", DIGEST, "") is first
    members.started = True
    assert members.join("trainer", "t1", DIGEST, "") is first


@pytest.mark.parametrize(
    ("role", "digest", "why"),
    [
        ("cook", DIGEST, "this job has no role 'cook'"),
        ("sync", DIGEST, "this job has no role 'sync'"),
        ("trainer", "d2", "job differs from the coordinator's; start every node with the same job file"),
    ],
)
def test_a_stranger_is_refused_and_changes_nothing(
    members: Membership, role: str, digest: str, why: str
) -> None:
    with pytest.raises(ClusterError, match=why):
        members.join(role, "x", digest, "")
    assert (members.alive(), members.find("x")) == ([], None)


def test_one_too_many_is_refused(members: Membership) -> None:
    join(members, "reader", "r1")
    with pytest.raises(ClusterError, match="the job already has its 1 reader nodes"):
        join(members, "reader", "r2")
    assert members.missing() == {"reader": 1, "trainer": 2}


def test_nobody_joins_a_running_job(members: Membership) -> None:
    members.started = True
    with pytest.raises(ClusterError, match="the job is running"):
        join(members, "trainer", "t1")


def test_one_that_joins_late_has_a_name_of_its_own(members: Membership) -> None:
    join(members, "reader", "r1")
    members.started = True
    members.lose("r1", "died")
    late = members.join("reader", "r2", DIGEST, "", late=True)
    assert late.info.name == "reader-1"
    assert members.join("reader", "r3", DIGEST, "", late=True).info.name == "reader-2"
    assert members.join("reader", "r2", DIGEST, "", late=True) is late


def test_the_lost_are_known_and_stay_lost(members: Membership) -> None:
    join(members, "trainer", "t1")
    members.start()
    lost = members.lose("t1", "was silent")
    assert lost is not None
    assert (lost.info.name, lost.alive, lost.lost_because) == ("trainer-0", False, "was silent")
    assert members.lose("t1", "again") is None
    assert members.lose("nobody", "never was") is None
    assert lost.lost_because == "was silent"
    assert members.find("t1") is lost
    assert members.alive() == []
    assert members.everyone("trainer") == [lost]
    with pytest.raises(ClusterError, match=r"trainer-0 was declared dead \(was silent\)"):
        members.require("t1")
    with pytest.raises(ClusterError, match="trainer-0 was declared dead"):
        join(members, "trainer", "t1")
    with pytest.raises(ClusterError, match="was declared dead"):
        members.require("t1").get_ready(NodeFacts())


def test_before_the_start_a_dead_nodes_place_is_free_again(members: Membership) -> None:
    join(members, "trainer", "t1")
    join(members, "trainer", "t2")
    members.lose("t1", "died")
    assert join(members, "trainer", "t3") == "trainer-0"
    assert [member.info.token for member in members.everyone("trainer")] == ["t3", "t2"]
    # The supervisor still ends its process, and it cannot come back.
    assert members.dead_tokens() == ["t1"]
    with pytest.raises(ClusterError, match="trainer-0 was declared dead"):
        join(members, "trainer", "t1")


def test_a_stranger_is_no_member(members: Membership) -> None:
    with pytest.raises(ClusterError, match="not a member of this job; join the job first"):
        members.require("x")


def test_missing_are_those_that_are_not_ready(members: Membership) -> None:
    assert members.missing() == {"reader": 1, "trainer": 2}
    for role, token in (("trainer", "t1"), ("trainer", "t2"), ("reader", "r")):
        join(members, role, token)
    assert members.missing() == {"reader": 1, "trainer": 2}
    members.require("t1").get_ready(NodeFacts(dense_elements=5))
    members.require("r").get_ready(NodeFacts())
    assert members.missing() == {"trainer": 1}
    assert members.require("t1").facts.dense_elements == 5
    members.require("t2").get_ready(NodeFacts())
    assert members.missing() == {}
    members.lose("t1", "died")
    assert members.missing() == {"trainer": 1}


def ready(members: Membership, token: str) -> None:
    members.require(token).get_ready(NodeFacts())


def why_missing(members: Membership, silence: float) -> str:
    return missing_nodes(members, lambda _: silence, 15.0)


def test_each_place_without_a_ready_node_is_named_with_what_became_of_it(members: Membership) -> None:
    join(members, "reader", "r1")
    join(members, "trainer", "t1")
    join(members, "trainer", "t2")
    ready(members, "r1")
    assert why_missing(members, 3.0) == (
        "trainer-0 (joined, and still prepares), trainer-1 (joined, and still prepares)"
    )
    ready(members, "t2")
    assert why_missing(members, 16.0) == "trainer-0 (joined, and has been silent for 16 s)"
    members.lose("t1", "was silent for 15 s, and not ready")
    assert why_missing(members, 0.0) == "trainer-0 (the last one was silent for 15 s, and not ready)"
    # Another one takes the place, and is what counts from then on.
    join(members, "trainer", "t3")
    assert [one.info.token for one in members.preparing()] == ["t3"]
    assert why_missing(members, 0.0) == "trainer-0 (joined, and still prepares)"
    ready(members, "t3")
    assert (why_missing(members, 99.0), members.missing(), members.preparing()) == ("", {}, [])


def test_of_many_missing_nodes_some_are_named() -> None:
    said = missing_nodes(Membership({"trainer": 100}, DIGEST), lambda _: 0.0, 15.0)
    assert said.startswith("trainer-0 (none joined), trainer-1 (none joined), ")
    assert said.endswith("trainer-7 (none joined) and 92 more")


def test_only_the_silent_come_back_and_only_to_a_free_place() -> None:
    members = Membership({"embedding": 2, "trainer": 1}, DIGEST)
    for token in ("e0", "e1"):
        members.join("embedding", token, DIGEST, "")
    members.start()
    members.lose("e0", "was silent for 15 s")
    members.lose("e1", "failed: its disk is full")
    assert members.place_of("embedding", "e0", [0, 1]) == [0]
    for role, former in (("embedding", "e1"), ("trainer", "e0"), ("embedding", "nobody")):
        with pytest.raises(ClusterError, match="only a node that was silent may come back"):
            members.place_of(role, former, [0, 1])
    members.join("embedding", "e2", DIGEST, "", late=True, place=0)
    with pytest.raises(ClusterError, match="embedding-2 has taken the place of embedding-0"):
        members.place_of("embedding", "e0", [1])


def test_a_sync_node_comes_back_to_its_own_slice_only() -> None:
    members = Membership({"sync": 2}, DIGEST)
    for token in ("s0", "s1"):
        members.join("sync", token, DIGEST, "")
    members.start()
    members.lose("s1", "was silent for 15 s")
    assert members.place_of("sync", "s1", [0, 1], held=1) == [1]
    members.join("sync", "s2", DIGEST, "", late=True)
    with pytest.raises(ClusterError, match="sync-2 has taken the place of sync-1"):
        members.place_of("sync", "s1", [0], held=1)


def test_a_process_is_known_by_its_first_token_however_often_it_comes_back() -> None:
    members = Membership({"trainer": 2}, DIGEST)
    for token in ("t0", "t1"):
        members.join("trainer", token, DIGEST, "")
    members.start()
    for number in (1, 2):
        before = "t0" if number == 1 else "t0-1"
        members.lose(before, "was silent for 15 s")
        assert members.dead_tokens() == ["t0"]
        members.join("trainer", f"t0-{number}", DIGEST, "", late=True, former=before)
        assert members.dead_tokens() == []
        assert members.newest_token("t0") == f"t0-{number}"
    members.lose("t1", "was silent for 15 s")
    assert members.dead_tokens() == ["t1"]
    assert members.newest_token("t1") == "t1"
