"""The resources that a job needs of a Ray cluster and lacks.

Imports no ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.text.format import counted, data_size
from ..job_nodes import COORDINATOR, RoleNodes, nodes_of

# Names of Ray.
CPU: Final = "CPU"
GPU: Final = "GPU"
MEMORY: Final = "memory"

Resources = dict[str, float]


@dataclass(frozen=True)
class Bundle:
    """The place of one node on a machine: a bundle of a placement group.

    Attributes:
        role: the node's role.
        index: the node's number in its role.
        resources: amounts by Ray's names; memory in bytes.
    """

    role: str
    index: int
    resources: Resources

    @property
    def name(self) -> str:
        """The node's name, such as trainer-0."""
        return f"{self.role}-{self.index}"


def bundles_of(job: Job) -> list[Bundle]:
    """Return a bundle for each node but the coordinator.

    The driver starts that beside itself.
    """
    return [
        Bundle(nodes.role, index, _resources(nodes))
        for nodes in nodes_of(job)
        for index in range(nodes.count)
        if nodes.role != COORDINATOR
    ]


def another_bundle(job: Job, role: str, index: int) -> Bundle:
    """Return the bundle of a node that joins the running job."""
    (nodes,) = (nodes for nodes in nodes_of(job) if nodes.role == role)
    return Bundle(role, index, _resources(nodes))


def on_machines(job: Job) -> Job:
    """Return the job as the machines of a cluster take it.

    Its `run.directory` is absolute. Raises JobFileError for a setting that means nothing there.
    """
    if job.network.slow is not None:
        raise JobFileError(
            "network.delay and network.bandwidth emulate a network on one machine",
            where="--on ray",
            remedy="remove them, or remove --on ray",
        )
    if job.network.transport == "ipc":
        raise JobFileError(
            '"ipc" given; it connects processes of one machine',
            where="network.transport",
            remedy='set "auto", or remove --on ray',
        )
    device = job.trainer.device
    if device.startswith("cuda:") and device != "cuda:0":
        raise JobFileError(
            f'"{device}" given; Ray gives each trainer a GPU, which is the only one that it sees',
            where="trainer.device",
            remedy='set "cuda"',
        )
    run = job.run.model_copy(update={"directory": str(Path(job.run.directory).absolute())})
    return job.model_copy(update={"run": run})


def shortage(
    bundles: Sequence[Bundle], machines: int, total: Mapping[str, float], free: Mapping[str, float]
) -> str:
    """Describe what a cluster has, what nodes need, and what is missing.

    Args:
        bundles: those of the whole job, or of a node that joins it.
        machines: number of machines.
        total: what the cluster has, by Ray's names.
        free: what of it nobody else has reserved.
    """
    needed = {name: sum(bundle.resources.get(name, 0) for bundle in bundles) for name in (CPU, GPU, MEMORY)}
    missing = {name: needed[name] - free.get(name, 0) for name in needed}
    if any(value > 0 for value in missing.values()):
        lacks = _amounts({name: max(0.0, value) for name, value in missing.items()})
    else:
        largest = max(bundles, key=lambda bundle: (bundle.resources.get(GPU, 0), bundle.resources[CPU]))
        lacks = f"room on one machine, such as {_amounts(largest.resources)} for {largest.name}"
    if len(bundles) == 1:
        who = f"{bundles[0].name} needs"
    else:
        who = f"the {counted(len(bundles), 'node')} of the job need"
    return (
        f"the cluster has {_amounts(total)} on {counted(machines, 'machine')}, and free of it"
        f" {_amounts(free)}; {who} {_amounts(needed)}: it lacks {lacks}"
    )


def _resources(nodes: RoleNodes) -> Resources:
    resources: Resources = {CPU: float(nodes.cpus), MEMORY: float(nodes.memory_bytes)}
    return resources | ({GPU: float(nodes.gpus)} if nodes.gpus else {})


def _amounts(resources: Mapping[str, float]) -> str:
    parts = []
    for name in (CPU, GPU):
        if value := resources.get(name, 0):
            parts.append(f"{value:g} {name}{'' if value == 1 else 's'}")
    if memory := resources.get(MEMORY, 0):
        parts.append(f"{data_size(memory)} of memory")
    return ", ".join(parts) or "nothing"
