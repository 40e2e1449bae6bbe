"""The launcher of a job's nodes on a Ray cluster, each in an actor.

Ray places; the supervisor decides. So an actor is never restarted by Ray: a node that ends is told to the
supervisor, which starts its replacement in the same bundle. Ray moves the bundle if its machine is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ... import __version__
from ...nodes.supervisor.launcher import COORDINATOR, Launcher, NodeKey, NodeStart, RunningNode
from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError, JobFileError
from ...pipeline.text.format import duration
from ...pipeline.wire.keys.job_key import job_key
from .bundles import CPU, GPU, MEMORY, another_bundle, bundles_of
from .cluster import own_address, release, reserve
from .host import CALLS_AT_ONCE, NodeHost, Surroundings
from .node import RayNode
from .places import Place, Places

# Limits for a node that joins. A cluster with room gives it at once; the coordinator waits a minute in all.
ROOM_SECONDS: Final = 10.0
ACTOR_SECONDS: Final = 40.0


class RayLauncher:
    """Start the nodes of a job on a cluster; see `Launcher`.

    The coordinator is a child of this process, the driver, so that its ledger, page and report are where the
    job was submitted.

    Args:
        local: launcher of the coordinator.
    """

    trainers_here = False

    def __init__(self, local: Launcher) -> None:
        self._local = local
        key = job_key()
        self._key = key.text if key is not None else ""
        self._places = Places(reserve, release)
        # Actors whose node is not started yet.
        self._idle: dict[NodeKey, Any] = {}
        self._job: Job | None = None

    async def open(self, job: Job) -> None:
        """Reserve a bundle for each node, and start their actors.

        Raises ClusterError if the cluster is too small, or if a machine has no shadowsync of this version or
        does not see the run folders; JobFileError if those cannot be made.
        """
        self._job = job
        seconds = job.run.start_timeout_seconds
        await self._places.add(
            [bundles_of(job)],
            seconds,
            "add machines, lower the counts of nodes, of trainer.workers or embedding.threads,"
            " or raise run.start_timeout_seconds if machines are still to come",
        )
        places = self._places.all()
        with _probe(Path(job.run.directory)) as probe:
            starts = [self._new_host(place, self._seen(probe), seconds) for place in places.values()]
            self._idle = dict(zip(places, await asyncio.gather(*starts), strict=True))

    async def start(self, node: NodeStart) -> RunningNode:
        """Start a node in its bundle; see `Launcher`.

        A node that joins gets the bundle of one of its role that left, or one of its own.
        """
        assert self._job is not None
        if node.role == COORDINATOR:
            address = own_address()
            addresses = ("--bind", address, "--advertise", address)
            return await self._local.start(replace(node, addresses=addresses))
        key = node.role, node.index
        host = self._idle.pop(key, None) or await self._another_host(key, self._job, node.job_file)
        job = await asyncio.to_thread(node.job_file.read_text, encoding="utf-8")
        arguments = (*key, node.token, job, list(node.options))
        try:
            await host.start.remote(*arguments)
        except RayError as error:
            ray.kill(host)
            raise ClusterError(f"{node.role}-{node.index} cannot be started ({_reason(error)})") from error
        patience_seconds = self._job.run.node_timeout_seconds
        return RayNode(node, host, patience_seconds, left=lambda: self._places.leave(key))

    async def close(self) -> None:
        """Give all room back, which ends the actors that are left."""
        self._places.close()

    async def _another_host(self, key: NodeKey, job: Job, job_file: Path) -> Any:
        """Start the actor of a replacement, or of a node that joins.

        Raises ClusterError; the bundle of a node that joins is left then.
        """
        if (place := self._places.of(key)) is not None:
            # The bundle of a machine that is gone waits for room on another one.
            return await self._new_host(place, self._seen(job_file), job.run.rejoin_seconds)
        place = self._places.reuse(key) or await self._new_place(key, job)
        seconds = min(job.run.rejoin_seconds, ACTOR_SECONDS)
        try:
            return await self._new_host(place, self._seen(job_file), seconds)
        except ClusterError:
            self._places.leave(key)
            raise

    async def _new_place(self, key: NodeKey, job: Job) -> Place:
        """Reserve a bundle for a node that joins; raises ClusterError without room."""
        remedy = "add machines to the cluster, or have fewer nodes"
        try:
            await self._places.add([[another_bundle(job, *key)]], ROOM_SECONDS, remedy)
        except ClusterError:
            # The process of one that leaves may have ended meanwhile.
            if (left := self._places.reuse(key)) is not None:
                return left
            raise
        return self._places.all()[key]

    def _seen(self, file: Path) -> Path | None:
        """Return the file of the run folders that every machine must see.

        With a storage there is none.
        """
        assert self._job is not None
        return None if self._job.run.storage else file

    async def _new_host(self, place: Place, probe: Path | None, timeout_seconds: float) -> Any:
        """Start an actor in a bundle, and check its machine.

        It must see the file `probe`, if there is one. Raises ClusterError.
        """
        resources = place.bundle.resources
        actor = ray.remote(NodeHost).options(
            num_cpus=resources[CPU],
            num_gpus=resources.get(GPU, 0),
            memory=int(resources[MEMORY]),
            # Two owners of restarts would fight.
            max_restarts=0,
            max_concurrency=CALLS_AT_ONCE,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place.group, place.number),
        )
        host = actor.remote(self._key)
        name = place.bundle.name
        try:
            async with asyncio.timeout(timeout_seconds):
                machine: Surroundings = await host.describe_machine.remote(str(probe or ""))
            _require_usable(machine, name, probe)
        except TimeoutError as error:
            ray.kill(host)
            raise ClusterError(f"no machine took {name} within {duration(timeout_seconds)}") from error
        except RayError as error:
            ray.kill(host)
            raise ClusterError(
                f"{name} cannot be started ({_reason(error)})",
                where="--on ray",
                remedy=f"install shadowsync {__version__} on every machine of the cluster",
            ) from error
        except ClusterError:
            ray.kill(host)
            raise
        return host


@contextlib.contextmanager
def _probe(directory: Path) -> Iterator[Path]:
    """Have a file in the folder of run folders.

    A machine that sees the file sees the folder.
    """
    probe = directory.absolute() / f".shadowsync-{uuid4().hex}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise JobFileError(
            f"cannot be written ({error.strerror})", where=str(directory), remedy="set run.directory"
        ) from error
    try:
        yield probe
    finally:
        probe.unlink(missing_ok=True)


def _require_usable(machine: Surroundings, name: str, probe: Path | None) -> None:
    if machine["version"] != __version__:
        raise ClusterError(
            f"has shadowsync {machine['version']}, and the driver {__version__}",
            where=f"{name} on {machine['host']}",
            remedy="install the same one on every machine",
        )
    if probe is not None and not machine["sees_folder"]:
        raise ClusterError(
            f"does not see the driver's {probe.parent}; all nodes write their parts of checkpoints there",
            where=f"{name} on {machine['host']}",
            remedy="set run.storage to a bucket, or run.directory to a folder that all machines share by the"
            " same path",
        )


def _reason(error: RayError) -> str:
    """Return the line of Ray's message that names the cause.

    It is the last one of a traceback, else the first.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0]
