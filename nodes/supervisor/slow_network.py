"""The slow network of a supervised job: its relay, and what each child is started with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any
from uuid import uuid4

from ...pipeline.config.job import Job
from ...pipeline.config.network import SlowNetwork
from ...pipeline.errors import ClusterError, ExitCode, JobFileError
from ...pipeline.report.model import EmulatedNetwork
from ...pipeline.wire.endpoints import WILDCARDS, local_address, use_ipc
from ..runtime.process import RELAY, exit_status_text
from .child import Child
from .starter import Starter

Place = tuple[str, int]
START_SECONDS = 20.0


class Emulation:
    """What stands between the nodes of a job; does nothing where no slow network is asked for.

    A relay stands before every listening node whose links are emulated: the node tells the others the
    relay's endpoint. Runs on the supervisor's loop.

    Raises:
        JobFileError: the job asks for a means that there is no more.
    """

    def __init__(self, job: Job) -> None:
        self.relay: Child | None = None
        self._network = job.network
        self._wanted = job.network.slow
        if self._wanted is not None and job.network.emulation == "tc":
            raise JobFileError(
                'network.emulation: "tc" given; the kernel\'s traffic control is not used any more',
                remedy='give "relay" or leave it out',
            )
        self._places: list[Place] = []
        if self._wanted is not None:
            roles = job.expected if self._wanted.every_link else dict.fromkeys(("trainer", "sync"))
            self._places = [(role, at) for role in roles for at in range(job.expected[role])]
        if self._wanted is not None and self._wanted.every_link:
            self._places.insert(0, ("coordinator", 0))
        self._options: dict[Place, list[str]] = {}
        self._tokens = {place: uuid4().hex for place in self._places}
        self._figures: dict[str, Any] = {}

    def token(self, role: str, index: int) -> str:
        """The incarnation that a child is to have."""
        return self._tokens.get((role, index)) or uuid4().hex

    def options(self, role: str, index: int) -> list[str]:
        """`--bind` and `--advertise` of a child."""
        if (role, index) in self._options:
            return self._options[role, index]
        network = self._network
        return ["--bind", network.bind, *(["--advertise", network.advertise] if network.advertise else [])]

    async def start(self, starter: Starter) -> None:
        """Puts the network in place; raises ClusterError if that cannot be."""
        if self._wanted is not None:
            await self._start_relay(self._wanted, starter)

    async def stop(self) -> None:
        """Ends the relay and keeps what it says it cost."""
        if self.relay is None:
            return
        self.relay.signal(15)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.relay.ended.wait(), 5.0)
        self.relay.signal(9)
        self._figures = self._told("figures") or {}
        await self.relay.close()

    def verdict(self) -> tuple[ExitCode, str] | None:
        """What to end with if the relay died before it was told to."""
        if self.relay is None or not self.relay.ended.is_set() or self._told("figures") is not None:
            return None
        return (
            ExitCode.STOPPED_BY_DEATH,
            f"the relay of the slow network died ({exit_status_text(self.relay.code)})",
        )

    def note(self) -> EmulatedNetwork | None:
        """What the report says of it."""
        if self._wanted is None:
            return None
        return EmulatedNetwork(
            means="relay",
            delay_seconds=self._wanted.delay_seconds,
            bytes_per_second=self._wanted.bytes_per_second,
            links="all" if self._wanted.every_link else "sync",
            relay_cpu_seconds=self._figures.get("cpu_seconds"),
            relay_bytes=self._figures.get("bytes"),
        )

    async def _start_relay(self, wanted: SlowNetwork, starter: Starter) -> None:
        network = self._network
        host = network.bind.removeprefix("tcp://")
        if host in WILDCARDS or ":" in host:
            host = "127.0.0.1"
        ipc = use_ipc(network.transport, network.bind, one_machine=True)
        if ipc:
            doors = [(local_address(uuid4().hex), local_address(token)) for token in self._tokens.values()]
        else:
            doors = [(f"tcp://{host}:0", f"tcp://{host}:{port}") for port in _free_ports(host, self._places)]
        spec = {"delay_seconds": wanted.delay_seconds, "bytes_per_second": wanted.bytes_per_second}
        arguments = ["-m", RELAY, json.dumps(spec | {"doors": doors})]
        self.relay = Child("relay", 0, uuid4().hex, await starter.start(arguments, torch=False))
        endpoints = await self._endpoints()
        for place, endpoint, (_, target) in zip(self._places, endpoints, doors, strict=True):
            bind = network.bind if ipc else target.removeprefix("tcp://")
            self._options[place] = ["--bind", bind, "--advertise", endpoint]

    async def _endpoints(self) -> list[str]:
        assert self.relay is not None
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while (found := self._told("doors")) is None:
            if self.relay.ended.is_set() or asyncio.get_running_loop().time() > deadline:
                raise ClusterError(
                    f"the relay of the slow network did not start ({self.relay.last_line() or 'no word'})"
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.relay.ended.wait(), 0.02)
        return [str(endpoint) for endpoint in found]

    def _told(self, key: str) -> Any:
        assert self.relay is not None
        start = f'{{"{key}": '
        line = next((line for line in self.relay.lines if line.startswith(start)), None)
        return None if line is None else json.loads(line)[key]


def _free_ports(host: str, places: list[Place]) -> list[int]:
    """Ports that nobody listens on now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in places]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
