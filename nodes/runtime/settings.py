"""What a node is started with, beside the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ...pipeline.config.job import Job
from ...pipeline.wire.endpoints import listen_address, local_address, use_ipc


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one process.

    Attributes:
        job: the job, the same on every node.
        join: the coordinator's endpoint; empty for the coordinator itself.
        bind: host, or host:port, to listen on.
        advertise: the host that others are told; empty for the bound one.
        token: this process's incarnation, unique for ever.
        folder: the run folder; given to the coordinator, told to the others.
        announce: a file that the coordinator writes its endpoint to.
        metrics_port: where to serve metrics; None for `watch.metrics_port`, 0 for nowhere.
        profile_seconds: for how long to measure; given to the coordinator of a profile.
        supervised: whether standard input is a pipe whose end means that the supervisor died.
    """

    job: Job
    join: str = ""
    bind: str = "127.0.0.1"
    advertise: str = ""
    token: str = field(default_factory=lambda: uuid4().hex)
    folder: Path | None = None
    announce: Path | None = None
    metrics_port: int | None = None
    profile_seconds: float | None = None
    supervised: bool = False

    def listen_at(self) -> str:
        """The address to listen on; raises JobFileError for a transport that this machine lacks."""
        if use_ipc(self.job.network.transport, self.bind, one_machine=self.supervised):
            return local_address(self.token)
        return listen_address(self.bind)
