"""Settings of a node beside the job: addresses, folders, ports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...pipeline.config.job import Job
from ...pipeline.config.sections import parse_page_address
from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.text.format import duration
from ...pipeline.types import MAX_PORT
from ...pipeline.wire.endpoints import AUTO, listen_address, local_address, own_address, use_ipc
from ...pipeline.wire.keys import http_token
from ...pipeline.wire.keys.curve import require_key, socket_warnings


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one process.

    Attributes:
        job: the job, the same on every node.
        join: the coordinator's endpoint; empty for the coordinator itself.
        bind: host, or host:port, to listen on.
        advertise: the host that others connect to; empty for the bound one.
        token: unique name of this process.
        folder: the run folder; set for the coordinator, which sends it to the others.
        recover: the folder of a run whose coordinator died; this one takes over.
        announce: a file that the coordinator writes its endpoint to.
        metrics_port: port of the metrics; None for `watch.metrics_port`, 0 for no metrics.
        profile_seconds: time to measure; given to the coordinator of a profile.
        supervised: whether standard input is a pipe whose end means that the supervisor died.
        supervisor: identity of the supervisor's session, which alone may tell the coordinator that processes
            have ended; a secret of the two. Empty without a supervisor.
    """

    job: Job
    join: str = ""
    bind: str = "127.0.0.1"
    advertise: str = ""
    token: str = field(default_factory=lambda: uuid4().hex)
    folder: Path | None = None
    recover: Path | None = None
    announce: Path | None = None
    metrics_port: int | None = None
    profile_seconds: float | None = None
    supervised: bool = False
    supervisor: str = ""

    def listen_at(self) -> str:
        """Return the address to listen on.

        Raises JobFileError for a transport that this machine lacks, and for one off loopback without a key.
        """
        if use_ipc(self.job.network.transport, self.bind, one_machine=self.supervised):
            return local_address(self.token)
        address = listen_address(self.bind)
        require_key(address)
        return address


def metrics_address(settings: NodeSettings) -> tuple[str, int] | None:
    """Return the host and port of the metrics; None for no metrics.

    The host is the one that the node listens on for others.
    """
    port = settings.metrics_port
    if port is None:
        port = settings.job.watch.metrics_port
    if not port:
        return None
    bind = settings.bind.removeprefix("tcp://")
    host, colon, port_text = bind.rpartition(":")
    return (host if colon and (port_text.isdecimal() or port_text == "*") else bind).strip("[]"), port


def insecurities(settings: NodeSettings) -> list[str]:
    """Return the report's warnings about the coordinator's settings."""
    warnings = socket_warnings(settings.listen_at())
    if settings.job.watch.web:
        warnings += http_token.http_warnings("The page", *parse_page_address(settings.job.watch.web))
    if (address := metrics_address(settings)) is not None:
        warnings += http_token.http_warnings("The coordinator's metrics", *address)
    return warnings


def metrics_ports(job: Job) -> dict[tuple[str, int], int]:
    """Return one machine's metrics ports, by role and index.

    A port is 0 if its metrics are off. The coordinator's is the first. Raises JobFileError if they do not all
    fit.
    """
    nodes = [("coordinator", 0)]
    nodes += [(role, index) for role, count in job.expected.items() for index in range(count)]
    first = job.watch.metrics_port
    if first and first + len(nodes) - 1 > MAX_PORT:
        raise JobFileError(
            f"watch.metrics_port: {first} given; {len(nodes)} nodes need the ports up to "
            f"{first + len(nodes) - 1}, but the highest port is {MAX_PORT}",
            remedy="give a lower port",
        )
    return {node: first + number if first else 0 for number, node in enumerate(nodes)}


RETRY_SECONDS = 0.5


async def resolve_advertised_host(settings: NodeSettings) -> str:
    """Return `settings.advertise`; for "auto" this host's address towards the coordinator.

    A container may start before the name of its coordinator is known, so this tries again for
    `run.start_timeout_seconds`. Call it on the node's loop.

    Raises:
        ClusterError: the coordinator's host is not known after that.
    """
    if settings.advertise != AUTO:
        return settings.advertise
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.job.run.start_timeout_seconds
    while True:
        try:
            return await asyncio.to_thread(own_address, settings.join)
        except ClusterError as error:
            if loop.time() > deadline:
                raise ClusterError(
                    f"{error.what}, even after {duration(settings.job.run.start_timeout_seconds)}",
                    where=settings.join,
                    remedy="start the coordinator first and give the address that it prints",
                ) from error
        await asyncio.sleep(RETRY_SECONDS)
