"""What the nodes of a slow network are started with, and what the report is told."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.supervisor.emulation import Emulation
from shadowsync.nodes.supervisor.starter import SpawnStarter, StartedProcess
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.real_time import run_in_real_time

Make = Callable[..., Emulation]


@pytest.fixture
def emulation() -> Make:
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


@asynccontextmanager
async def in_place(own: Emulation, starter: SpawnStarter | None = None) -> AsyncIterator[None]:
    """While the network is in place, which is always taken away."""
    await own.start(starter or SpawnStarter())
    try:
        yield
    finally:
        await own.stop()


def options(own: Emulation, role: str, index: int = 0) -> dict[str, str]:
    words = own.options(role, index)
    return dict(zip(words[::2], words[1::2], strict=True))


@run_by(run_in_real_time)
async def test_without_a_slow_network_there_is_nothing(emulation: Make) -> None:
    own = emulation(bind="10.0.0.1", advertise="host")
    async with in_place(own):
        assert options(own, "sync") == {"--bind": "10.0.0.1", "--advertise": "host"}
        assert own.relay is None
        assert own.token("sync", 0) != own.token("sync", 0)
    assert own.report_entry() is None
    assert own.failure() is None


@run_by(run_in_real_time)
async def test_those_who_synchronize_listen_behind_the_relay(emulation: Make) -> None:
    own = emulation(delay="5ms")
    async with in_place(own):
        reported = set()
        for role in ("trainer", "sync"):
            for index in (0, 1):
                found = options(own, role, index)
                assert found["--bind"] == "127.0.0.1"
                assert own.token(role, index) not in found["--advertise"], "the relay's endpoint, not its own"
                assert own.token(role, index) == own.token(role, index)
                reported.add(found["--advertise"])
        assert len(reported) == 4
        assert all(endpoint.startswith("ipc://@shadowsync-") for endpoint in reported)
        for role in ("coordinator", "reader", "embedding"):
            assert options(own, role) == {"--bind": "127.0.0.1"}, "the control"
    note = present(own.report_entry())
    assert (note.means, note.delay_seconds, note.links) == ("relay", 0.005, "sync")
    assert present(note.relay_cpu_seconds) > 0
    assert note.relay_bytes == 0
    assert own.failure() is None


class RecordingStarter(SpawnStarter):
    """Keeps what it was told to start."""

    def __init__(self) -> None:
        self.arguments: list[Sequence[str]] = []

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        self.arguments.append(arguments)
        return await super().start(arguments, torch=torch)


@pytest.mark.parametrize(
    ("network", "reported"),
    [
        ({"delay": "5ms"}, (0.005, None)),
        ({"bandwidth": "8mbit"}, (0.0, 1e6)),
        ({"delay": "0.2s", "bandwidth": "20mbit", "delay_links": "all"}, (0.2, 2.5e6)),
    ],
)
@run_by(run_in_real_time)
async def test_the_relay_is_told_the_delay_and_the_rate(
    emulation: Make, network: dict[str, str], reported: tuple[float, float | None]
) -> None:
    """And no others are in the report."""
    own, starter = emulation(**network), RecordingStarter()
    async with in_place(own, starter):
        (arguments,) = starter.arguments
        spec = json.loads(arguments[-1])
        assert (spec["delay_seconds"], spec["bytes_per_second"]) == reported
    note = present(own.report_entry())
    assert (note.delay_seconds, note.bytes_per_second) == reported


@run_by(run_in_real_time)
async def test_all_links_are_those_of_every_node(emulation: Make) -> None:
    own = emulation(bandwidth="8mbit", delay_links="all")
    async with in_place(own):
        for role in ("coordinator", "reader", "embedding", "trainer", "sync"):
            assert options(own, role)["--advertise"].startswith("ipc://@")
    note = present(own.report_entry())
    assert (note.bytes_per_second, note.links) == (1e6, "all")


@run_by(run_in_real_time)
async def test_tcp_is_relayed_to_ports_of_its_own(emulation: Make) -> None:
    own = emulation(delay="5ms", transport="tcp", bind="0.0.0.0")
    async with in_place(own):
        ends = [options(own, role, at)[key] for role in ("trainer", "sync") for at in (0, 1) for key in KEYS]
        hosts = {end.removeprefix("tcp://").rpartition(":")[0] for end in ends}
        assert hosts == {"127.0.0.1"}
        assert len({end.rpartition(":")[2] for end in ends}) == 8


KEYS = ("--bind", "--advertise")


@run_by(run_in_virtual_time)
async def test_a_relay_has_as_long_to_start_as_the_job() -> None:
    network = {"delay": "5ms"}
    data = {"format": "parquet", "path": ["/x"]}
    job = Job.model_validate({"data": data, "network": network, "run": {"start_timeout_seconds": 90.0}})
    own, lines = Emulation(job), list[str]()
    relay = SimpleNamespace(ended=asyncio.Event(), lines=lines, last_line=lambda: "")
    own.relay = cast(Any, relay)
    asyncio.get_running_loop().call_later(60.0, lines.append, '{"listeners": ["ipc://x"]}')
    assert await own._endpoints() == ["ipc://x"]
    lines.clear()
    with pytest.raises(ClusterError, match="the relay of the slow network did not start"):
        await own._endpoints()


@run_by(run_in_real_time)
async def test_a_relay_that_dies_is_told(emulation: Make) -> None:
    own = emulation(delay="5ms")
    async with in_place(own):
        assert own.relay is not None
        assert own.failure() is None, "the control"
        own.relay.signal(signal.SIGKILL)
        await own.relay.ended.wait()
    assert own.failure() == (
        ExitCode.STOPPED_BY_DEATH,
        "the relay of the slow network died (killed by SIGKILL)",
    )
    note = present(own.report_entry())
    assert note.relay_cpu_seconds is None
