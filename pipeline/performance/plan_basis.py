"""Settings of a profiled job on which its measured costs depend."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from pydantic import NonNegativeInt

from ..config.job import Job
from ..config.tables import DEFAULT_FOLDER, TableSettings, bytes_in_memory, tables_on_disk
from ..types import ResultModel

# Numbers of nodes, workers, credit and the schedule of rounds are not among them: a plan chooses or follows
# them.
_SETTINGS: Final = (
    "trainer.batch",
    "trainer.precision",
    "trainer.device",
    "trainer.distinct_rows",
    "sync.algorithm",
    "sync.mode",
    "codecs.vectors",
    "codecs.gradients",
    "codecs.center_up",
    "codecs.center_down",
    "codecs.peers_up",
    "codecs.peers_down",
)


class PlanBasis(ResultModel):
    """What a plan needs to know of the profiled job.

    Attributes:
        model_digest: hex SHA-256 of the model, its tables and the dense optimizer.
        settings: values of the settings that change what an example costs, by key of the job file.
        rows_bytes: bytes of memory of all tables' rows, over all embedding nodes.
        embedding_threads: writer threads of an embedding node.
        machine_memory_bytes: memory of the coordinator's machine.
    """

    model_digest: str
    settings: dict[str, str]
    rows_bytes: NonNegativeInt
    embedding_threads: int
    machine_memory_bytes: NonNegativeInt

    @classmethod
    def of(cls, job: Job, machine_memory_bytes: int) -> PlanBasis:
        return cls(
            model_digest=model_digest(job),
            settings=cost_settings(job),
            rows_bytes=rows_bytes(job),
            embedding_threads=job.embedding.threads,
            machine_memory_bytes=machine_memory_bytes,
        )


def rows_bytes(job: Job) -> int:
    """Return the bytes of memory of all rows with their state, growing tables full, over all nodes.

    Rows on disk take none, so the limits of `memory_bytes` are the most that a node has.
    """
    return bytes_in_memory(_sizes(job), job.embedding.memory_bytes, job.embedding.nodes)


def files_of_rows(job: Job) -> dict[str, int]:
    """Return the folders in which rows lie, with the bytes of the files there, over all embedding nodes."""
    sizes = dict(_sizes(job))
    files: dict[str, int] = {}
    for table in tables_on_disk(sizes.items(), job.embedding.memory_bytes, job.embedding.nodes):
        folder = table.folder or DEFAULT_FOLDER
        files[folder] = files.get(folder, 0) + sizes[table]
    return files


def _sizes(job: Job) -> list[tuple[TableSettings, int]]:
    return [(table, table.rows * table.row_bytes) for table in job.tables]


def model_digest(job: Job) -> str:
    """Return the hex SHA-256 of the model, its tables and the dense optimizer.

    Learning rates and initial values are left out, since they change no cost.
    """
    tables = [
        [table.name, table.rows, table.dim, table.poolings, table.optimizer, table.storage, table.row_bytes]
        for table in job.tables
    ]
    whole = [job.model.model_dump(mode="json"), tables, job.data.label_names, job.trainer.optimizer]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


def cost_settings(job: Job) -> dict[str, str]:
    """Return the further settings on which an example's cost depends, as text."""
    settings = {"data.format": job.data.format, "data.prepared": "yes" if job.data.prepared else "no"}
    for key in _SETTINGS:
        section, _, name = key.partition(".")
        settings[key] = str(getattr(getattr(job, section), name))
    if job.sync.mode == "fixed":
        # There the workers' own steps contain the rounds.
        settings["sync.every"] = str(job.sync.every)
    # Rows on disk cost other times, by how many are in memory.
    for table in tables_on_disk(_sizes(job), job.embedding.memory_bytes, job.embedding.nodes):
        if table.memory_bytes is None:
            settings["embedding.memory_bytes"] = str(job.embedding.memory_bytes)
        else:
            settings[f"tables.{table.name}.memory_bytes"] = str(table.memory_bytes)
    return settings
