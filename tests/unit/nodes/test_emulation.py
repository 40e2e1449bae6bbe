"""What the nodes of a slow network are started with, by which means, and what the report is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from shadowsync.nodes import traffic_control
from shadowsync.nodes.emulation import Emulation
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ClusterError, ExitCode

RELAY = {"emulation": "relay"}


@pytest.fixture
def emulation() -> Callable[..., Emulation]:
    """For a job of two trainers and two sync nodes, with these settings of the network."""

    def make(**network: Any) -> Emulation:
        tree: dict[str, Any] = {
            "data": {"format": "parquet", "path": ["/x"]},
            "trainer": {"count": 2},
            "sync": {"nodes": 2},
            "network": network,
        }
        return Emulation(Job.model_validate(tree))

    return make


def during(own: Emulation, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Does something while the network is in place, and always takes it away."""

    async def main() -> None:
        async with asyncio.timeout(60.0):
            await own.start()
            try:
                await work()
            finally:
                await own.stop()

    asyncio.run(main())


def options(own: Emulation, role: str, index: int = 0) -> dict[str, str]:
    words = own.options(role, index)
    return dict(zip(words[::2], words[1::2], strict=True))


def test_without_a_slow_network_there_is_nothing(emulation: Callable[..., Emulation]) -> None:
    own = emulation(bind="10.0.0.1", advertise="host")

    async def work() -> None:
        assert options(own, "sync") == {"--bind": "10.0.0.1", "--advertise": "host"}
        assert own.relay is None
        assert own.token("sync", 0) != own.token("sync", 0)

    during(own, work)
    assert own.note() is None
    assert own.verdict() is None


def test_those_who_synchronize_listen_behind_the_relay(emulation: Callable[..., Emulation]) -> None:
    own = emulation(delay="5ms", **RELAY)

    async def work() -> None:
        told = set()
        for role in ("trainer", "sync"):
            for index in (0, 1):
                found = options(own, role, index)
                assert found["--bind"] == "127.0.0.1"
                assert own.token(role, index) not in found["--advertise"], "the relay's endpoint, not its own"
                assert own.token(role, index) == own.token(role, index)
                told.add(found["--advertise"])
        assert len(told) == 4
        assert all(endpoint.startswith("ipc://@shadowsync-") for endpoint in told)
        for role in ("coordinator", "reader", "embedding"):
            assert options(own, role) == {"--bind": "127.0.0.1"}, "the control"

    during(own, work)
    note = own.note()
    assert note is not None
    assert (note.means, note.delay_seconds, note.links) == ("relay", 0.005, "sync")
    assert note.relay_cpu_seconds is not None
    assert note.relay_cpu_seconds > 0
    assert note.relay_bytes == 0
    assert own.verdict() is None


def test_all_links_are_those_of_every_node(emulation: Callable[..., Emulation]) -> None:
    own = emulation(bandwidth="8mbit", delay_links="all", **RELAY)

    async def work() -> None:
        for role in ("coordinator", "reader", "embedding", "trainer", "sync"):
            assert options(own, role)["--advertise"].startswith("ipc://@")

    during(own, work)
    note = own.note()
    assert note is not None
    assert (note.bytes_per_second, note.links) == (1e6, "all")


def test_tcp_is_relayed_to_ports_of_its_own(emulation: Callable[..., Emulation]) -> None:
    own = emulation(delay="5ms", transport="tcp", bind="0.0.0.0", **RELAY)

    async def work() -> None:
        ends = [options(own, role, at)[key] for role in ("trainer", "sync") for at in (0, 1) for key in KEYS]
        hosts = {end.removeprefix("tcp://").rpartition(":")[0] for end in ends}
        assert hosts == {"127.0.0.1"}
        assert len({end.rpartition(":")[2] for end in ends}) == 8

    during(own, work)


KEYS = ("--bind", "--advertise")


def test_a_relay_that_dies_is_told(emulation: Callable[..., Emulation]) -> None:
    own = emulation(delay="5ms", **RELAY)

    async def work() -> None:
        assert own.relay is not None
        assert own.verdict() is None, "the control"
        own.relay.signal(signal.SIGKILL)
        await own.relay.ended.wait()

    during(own, work)
    assert own.verdict() == (
        ExitCode.STOPPED_BY_DEATH,
        "the relay of the slow network died (killed by SIGKILL)",
    )
    note = own.note()
    assert note is not None
    assert note.relay_cpu_seconds is None


def test_what_the_kernel_cannot_do_the_relay_does(
    emulation: Callable[..., Emulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_control, "why_not", lambda *_, **__: "it is Sunday")
    own = emulation(delay="5ms")

    async def work() -> None:
        assert own.relay is not None

    during(own, work)
    with pytest.raises(ClusterError, match=r'network.emulation: "tc" given, and it is Sunday; give "relay"'):
        during(emulation(delay="5ms", emulation="tc"), work)


@pytest.mark.parametrize(("network", "given"), [({"delay": "0ms"}, True), ({"bandwidth": "8mbit"}, False)])
def test_what_the_kernel_can_do_it_does(
    emulation: Callable[..., Emulation],
    monkeypatch: pytest.MonkeyPatch,
    network: dict[str, str],
    given: bool,
) -> None:
    """Each node has an address of its own, and a delay of 0 is one that was given."""
    entered: list[tuple[list[str], bool]] = []

    def enter(wanted: object, addresses: list[str], *, delay_given: bool) -> None:
        del wanted
        entered.append((addresses, delay_given))

    monkeypatch.setattr(traffic_control, "why_not", lambda *_, **__: "")
    monkeypatch.setattr(traffic_control, "enter", enter)
    own = emulation(**network)

    async def work() -> None:
        assert own.relay is None
        assert options(own, "sync", 1) == {"--bind": "127.0.0.5", "--advertise": "127.0.0.5"}
        assert options(own, "embedding") == {"--bind": "127.0.0.1"}

    during(own, work)
    assert entered == [(["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"], given)]
    note = own.note()
    assert note is not None
    assert (note.means, note.relay_cpu_seconds) == ("tc", None)
