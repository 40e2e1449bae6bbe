"""Whose each bundle of a running job is, and which go back to the cluster; no Ray is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from shadowsync.deployment.ray.bundles import Bundle
from shadowsync.deployment.ray.places import Places
from shadowsync.pipeline.errors import ClusterError

OF_ALL, ADD = 60.0, "add machines"


def a_bundle(role: str, index: int) -> Bundle:
    return Bundle(role, index, {"CPU": 2.0, "memory": 1e9})


class Cluster:
    """Groups, each a text of its bundles' names, that somebody holds."""

    def __init__(self, room: int = 100) -> None:
        self.held: list[str] = []
        self._room = room

    async def reserve(self, bundles: Sequence[Sequence[Bundle]], seconds: float, remedy: str) -> list[str]:
        assert (seconds, remedy) == (OF_ALL, ADD)
        if sum(map(len, bundles)) > self._room:
            raise ClusterError("too small")
        made = ["+".join(one.name for one in own) for own in bundles]
        self.held += made
        return made

    def release(self, group: str) -> None:
        self.held.remove(group)


async def a_job(cluster: Cluster) -> Places:
    places = Places(cluster.reserve, cluster.release)
    together = [a_bundle("reader", 0), a_bundle("trainer", 0), a_bundle("trainer", 1)]
    await places.add([together, [a_bundle("trainer", 2)]], OF_ALL, ADD)
    return places


def test_each_node_has_the_bundle_that_was_reserved_for_it() -> None:
    cluster = Cluster()
    places = asyncio.run(a_job(cluster))
    found = {key: (place.group, place.number, place.alone) for key, place in places.all().items()}
    together = "reader-0+trainer-0+trainer-1"
    assert found == {
        ("reader", 0): (together, 0, False),
        ("trainer", 0): (together, 1, False),
        ("trainer", 1): (together, 2, False),
        ("trainer", 2): ("trainer-2", 0, True),
    }
    assert places.of(("trainer", 1)) == places.all()["trainer", 1]
    assert places.of(("trainer", 3)) is None


def test_a_bundle_that_is_alone_goes_back_when_its_node_leaves() -> None:
    cluster = Cluster()
    places = asyncio.run(a_job(cluster))
    places.leave(("trainer", 2))
    assert cluster.held == ["reader-0+trainer-0+trainer-1"]
    assert places.reuse(("trainer", 3)) is None, "it is not there any more"
    places.leave(("trainer", 2))
    places.close()
    assert cluster.held == []


def test_one_of_several_is_for_the_next_node_of_its_role() -> None:
    """Ray takes back whole groups only."""
    cluster = Cluster()
    places = asyncio.run(a_job(cluster))
    places.leave(("trainer", 1))
    assert cluster.held == ["reader-0+trainer-0+trainer-1", "trainer-2"]
    assert places.of(("trainer", 1)) is None
    assert places.reuse(("reader", 1)) is None, "it is another role's"
    place = places.reuse(("trainer", 3))
    assert place is not None
    assert (place.group, place.number, place.bundle.name) == (cluster.held[0], 2, "trainer-3")
    assert places.of(("trainer", 3)) == place
    assert places.reuse(("trainer", 4)) is None, "once only"
    # The next one that leaves leaves the same.
    places.leave(("trainer", 3))
    again = places.reuse(("trainer", 4))
    assert again is not None
    assert again.number == 2


def test_a_node_that_does_not_leave_keeps_its_bundle() -> None:
    """The control: a death says nothing to it, since a replacement comes."""
    cluster = Cluster()
    places = asyncio.run(a_job(cluster))
    assert places.reuse(("trainer", 3)) is None
    assert len(cluster.held) == 2
    places.close()
    assert cluster.held == []
    assert places.all() == {}


def test_without_room_nothing_is_anybodys() -> None:
    cluster = Cluster(room=4)
    places = asyncio.run(a_job(cluster))
    before = places.all()
    with pytest.raises(ClusterError, match="too small"):
        asyncio.run(places.add([[a_bundle("trainer", 3 + index)] for index in range(5)], OF_ALL, ADD))
    assert places.all() == before
