"""The nodes of a job, and what each of them needs of its machine.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..pipeline.config.job import Job
from ..pipeline.config.kafka import PATH_SETTINGS
from ..pipeline.config.storage_url import is_url
from ..pipeline.errors import JobFileError
from ..pipeline.jobfile.load import PATHS
from ..pipeline.performance.plan_basis import files_of_rows, rows_bytes
from ..pipeline.types import TRAINING_ITEMS

COORDINATOR: Final = "coordinator"
WITHOUT_TORCH: Final = (COORDINATOR, "reader")
PROCESS_BYTES: Final = 512 << 20
"""Memory of a process with torch that holds nothing yet, rounded up."""

_SPARE: Final = 1.3
# Buffers of a node, in sizes of the dense model in float32, rounded up from the peaks of jobs with 27 million
# parameters (batches of 512; easgd and bmuf, adagrad and adam, one and two workers).
_TRAINER_COPIES: Final = 15
_WORKER_COPIES: Final = 5
_CENTER_COPIES: Final = 5


@dataclass(frozen=True, slots=True)
class RoleNodes:
    """The nodes of one role.

    Attributes:
        role: the command that starts one.
        count: number of nodes.
        cpus: cores that a node keeps busy.
        memory_bytes: memory to ask for; for an embedding node its rows and some room.
        gpus: GPUs of a node.
        disk_bytes: room on the disk of its machine, for rows and some more.
    """

    role: str
    count: int
    cpus: int
    memory_bytes: int
    gpus: int = 0
    disk_bytes: int = 0

    @property
    def needs_torch(self) -> bool:
        """Whether the node needs the image for all roles."""
        return self.role not in WITHOUT_TORCH


def nodes_of(job: Job, dense_parameters: int = 0) -> list[RoleNodes]:
    """Return the nodes of a job by role, the coordinator first.

    Roles without nodes are left out. Without the number of `dense_parameters`, trainers and sync nodes ask
    for what they have of a small model.
    """
    model_bytes = 4 * dense_parameters
    # The shadow thread computes beside the workers.
    cpus = {"trainer": job.trainer.workers + 1, "embedding": job.embedding.threads + 1}
    holds_bytes = {
        "reader": job.data.retain_bytes,
        "trainer": PROCESS_BYTES + (_TRAINER_COPIES + _WORKER_COPIES * job.trainer.workers) * model_bytes,
        "sync": _CENTER_COPIES * model_bytes // max(1, job.sync_nodes),
        "embedding": int(_SPARE * rows_bytes(job) / job.embedding.nodes),
    }
    gpus = {"trainer": int(job.trainer.device.startswith("cuda"))}
    disk = {"embedding": int(_SPARE * sum(files_of_rows(job).values()) / job.embedding.nodes)}
    return [
        RoleNodes(
            role,
            count,
            cpus.get(role, 1),
            PROCESS_BYTES + holds_bytes.get(role, 0),
            gpus.get(role, 0),
            disk.get(role, 0),
        )
        for role, count in {COORDINATOR: 1, **job.expected}.items()
        if count
    ]


def require_paths_below(job: Job, mounts: dict[str, str], of_input: dict[str, str]) -> None:
    """Raise JobFileError for a file that the nodes which read it cannot see.

    Args:
        job: the job.
        mounts: the folders that all nodes see, by the option that gives each.
        of_input: those that only the coordinator and the readers see.
    """
    for nodes, folders, paths in (
        ("coordinator and readers", mounts | of_input, _input_files(job)),
        ("nodes", mounts, _files_of_all(job)),
    ):
        for key, path in paths:
            local = path.removeprefix("file://")
            if not local or is_url(local) or any(Path(local).is_relative_to(f) for f in folders.values()):
                continue
            seen = ", ".join(f"{folder} ({option})" for option, folder in folders.items())
            raise JobFileError(
                f"{path} is a path of this machine; the job's {nodes} see {seen or 'none of its folders'}",
                where=key,
                remedy="give the path as they see it, or a URL if the key takes one",
            )


def _input_files(job: Job) -> list[tuple[str, str]]:
    """Return what the coordinator and the readers read, by its key."""
    data, items = job.data, job.validation.items
    return [
        *((f"data.{key}", path) for key in PATHS for path in getattr(data, key)),
        ("data.prepared", data.prepared),
        *((f"data.kafka.{key}", getattr(data.kafka, key)) for key in PATH_SETTINGS),
        ("validation.items", "" if items == TRAINING_ITEMS else items),
    ]


def _files_of_all(job: Job) -> list[tuple[str, str]]:
    """Return what trainers, embedding or sync nodes read, too."""
    code = ("model.name", job.model.name), ("sync.algorithm", job.sync.algorithm)
    return [
        ("start.checkpoint", job.start.checkpoint),
        *((key, name.rpartition(":")[0]) for key, name in code if "/" in name),
    ]
