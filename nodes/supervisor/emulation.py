"""The emulated slow network of a job: a relay, and options for each child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from typing import Any, Final
from uuid import uuid4

from ...pipeline.config.job import Job
from ...pipeline.config.network import SlowNetwork
from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.report.document import EmulatedNetwork
from ...pipeline.wire.endpoints import WILDCARDS, local_address, use_ipc
from ..runtime.process import RELAY, exit_status_text
from .child import Child
from .launcher import NodeKey
from .starter import Starter

# The endpoint at which a relay takes faults; without this variable it takes none.
CONTROL_VARIABLE: Final = "SHADOWSYNC_RELAY_CONTROL"


class Emulation:
    """The emulated network between a job's nodes; without one it does nothing.

    A relay listens in the place of every node whose links are emulated: the node advertises the relay's
    endpoint to the others. Runs on the supervisor's loop.
    """

    def __init__(self, job: Job) -> None:
        self.relay: Child | None = None
        self._network = job.network
        self._start_timeout_seconds = job.run.start_timeout_seconds
        self._slow = job.network.slow
        self._nodes: list[NodeKey] = []
        if self._slow is not None:
            roles = job.expected if self._slow.every_link else dict.fromkeys(("trainer", "sync"))
            self._nodes = [(role, index) for role in roles for index in range(job.expected[role])]
        if self._slow is not None and self._slow.every_link:
            self._nodes.insert(0, ("coordinator", 0))
        self._options: dict[NodeKey, list[str]] = {}
        self._tokens = {node: uuid4().hex for node in self._nodes}
        self._figures: dict[str, Any] = {}

    def has(self, role: str, index: int) -> bool:
        """Return whether a node has an endpoint of its own at the relay."""
        return (role, index) in self._options

    def token(self, role: str, index: int) -> str:
        return self._tokens.get((role, index)) or uuid4().hex

    def options(self, role: str, index: int) -> list[str]:
        """Return `--bind` and `--advertise` of a child."""
        if (role, index) in self._options:
            return self._options[role, index]
        network = self._network
        return ["--bind", network.bind, *(["--advertise", network.advertise] if network.advertise else [])]

    async def start(self, starter: Starter) -> None:
        """Start the relay, if one is needed; raises ClusterError if that fails."""
        if self._slow is not None:
            await self._start_relay(self._slow, starter)

    async def stop(self) -> None:
        """End the relay and keep the costs that it printed."""
        if self.relay is None:
            return
        self.relay.signal(15)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.relay.ended.wait(), 5.0)
        self.relay.signal(9)
        self._figures = self._printed("figures") or {}
        await self.relay.close()

    def failure(self) -> tuple[ExitCode, str] | None:
        """Return the exit code and text if the relay died before it was stopped."""
        if self.relay is None or not self.relay.ended.is_set() or self._printed("figures") is not None:
            return None
        return (
            ExitCode.STOPPED_BY_DEATH,
            f"the relay of the slow network died ({exit_status_text(self.relay.code)})",
        )

    def report_entry(self) -> EmulatedNetwork | None:
        """Return what the report says of the network."""
        if self._slow is None:
            return None
        return EmulatedNetwork(
            means="relay",
            delay_seconds=self._slow.delay_seconds,
            bytes_per_second=self._slow.bytes_per_second,
            links="all" if self._slow.every_link else "sync",
            relay_cpu_seconds=self._figures.get("cpu_seconds"),
            relay_bytes=self._figures.get("bytes"),
        )

    async def _start_relay(self, slow: SlowNetwork, starter: Starter) -> None:
        network = self._network
        host = network.bind.removeprefix("tcp://")
        if host in WILDCARDS or ":" in host:
            host = "127.0.0.1"
        ipc = use_ipc(network.transport, network.bind, one_machine=True)
        if ipc:
            listeners = [
                (local_address(uuid4().hex), local_address(token)) for token in self._tokens.values()
            ]
        else:
            listeners = [
                (f"tcp://{host}:0", f"tcp://{host}:{port}") for port in _find_free_ports(host, self._nodes)
            ]
        names = [f"{role}-{index}" for role, index in self._nodes]
        spec = {
            "delay_seconds": slow.delay_seconds,
            "bytes_per_second": slow.bytes_per_second,
            "listeners": [[name, *pair] for name, pair in zip(names, listeners, strict=True)],
            "control": os.environ.get(CONTROL_VARIABLE),
        }
        arguments = ["-m", RELAY, json.dumps(spec)]
        self.relay = Child("relay", 0, uuid4().hex, await starter.start(arguments, torch=False))
        endpoints = await self._endpoints()
        for node, endpoint, (_, target) in zip(self._nodes, endpoints, listeners, strict=True):
            bind = network.bind if ipc else target.removeprefix("tcp://")
            self._options[node] = ["--bind", bind, "--advertise", endpoint]

    async def _endpoints(self) -> list[str]:
        assert self.relay is not None
        deadline = asyncio.get_running_loop().time() + self._start_timeout_seconds
        while (listeners := self._printed("listeners")) is None:
            if self.relay.ended.is_set() or asyncio.get_running_loop().time() > deadline:
                printed = self.relay.last_line() or "it printed nothing"
                raise ClusterError(f"the relay of the slow network did not start ({printed})")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.relay.ended.wait(), 0.02)
        return [str(endpoint) for endpoint in listeners]

    def _printed(self, key: str) -> Any:
        assert self.relay is not None
        start = f'{{"{key}": '
        line = next((line for line in self.relay.lines if line.startswith(start)), None)
        return None if line is None else json.loads(line)[key]


def _find_free_ports(host: str, nodes: list[NodeKey]) -> list[int]:
    """Return ports that nobody listens on now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in nodes]
        for bound in sockets:
            bound.bind((host, 0))
        return [bound.getsockname()[1] for bound in sockets]
