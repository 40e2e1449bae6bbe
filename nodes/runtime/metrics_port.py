"""Where a node serves its metrics."""

from __future__ import annotations

from ...pipeline.config.job import Job
from ...pipeline.config.watch_section import MAX_PORT
from ...pipeline.errors import JobFileError
from .settings import NodeSettings


def metrics_address(settings: NodeSettings) -> tuple[str, int] | None:
    """Host and port; None for nowhere. The host is the one that the node listens on for others."""
    port = settings.metrics_port
    if port is None:
        port = settings.job.watch.metrics_port
    if not port:
        return None
    bind = settings.bind.removeprefix("tcp://")
    host, colon, own = bind.rpartition(":")
    return (host if colon and (own.isdecimal() or own == "*") else bind).strip("[]"), port


def metrics_ports(job: Job) -> dict[tuple[str, int], int]:
    """By role and index, for all nodes on one machine: the coordinator's, and those after it; zeros where
    there are none. Raises JobFileError if they do not all fit."""
    nodes = [("coordinator", 0)]
    nodes += [(role, index) for role, count in job.expected.items() for index in range(count)]
    first = job.watch.metrics_port
    if first and first + len(nodes) - 1 > MAX_PORT:
        raise JobFileError(
            f"watch.metrics_port: {first} given; {len(nodes)} nodes need the ports up to "
            f"{first + len(nodes) - 1}, and the last one is {MAX_PORT}",
            remedy="give a lower one",
        )
    return {node: first + at if first else 0 for at, node in enumerate(nodes)}
