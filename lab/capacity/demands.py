"""What an example, a step and a round cost, from a profile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...pipeline.config.job import Job
from ...pipeline.errors import DataError, JobFileError
from ...pipeline.performance.document import Profile
from ...pipeline.performance.measurements import NodeMeasurements, ProfileMeasurements
from ...pipeline.performance.plan_basis import PlanBasis, cost_settings, model_digest
from ...pipeline.performance.worker_time import WORKER

_WRITER: Final = re.compile(r"rows-\d+")
_PROFILE_AGAIN: Final = "profile this job: shadowsync profile JOB.toml"


@dataclass(frozen=True)
class Demands:
    """Costs in CPU seconds, bytes, and bytes of memory.

    Attributes:
        batch: examples of a step.
        step_seconds: CPU of a worker for one step.
        locked_seconds: part of a step, and of what runs beside it, that holds the interpreter's lock.
        trainer_seconds: CPU of a trainer for an example, all threads, without rounds.
        parser_seconds: CPU of a reader's parsing thread for an example.
        reader_seconds: CPU of a reader for an example, all threads.
        shard_seconds: CPU of the embedding nodes' service threads for an example, all nodes together.
        writer_seconds: the same of their writer threads; 0 where the service thread writes the rows.
        embedding_seconds: CPU of the embedding nodes for an example, all threads and nodes.
        coordinator_seconds: CPU of the coordinator for an example.
        round_cpu_seconds: CPU of a round, as the duty cycle counts it.
        shadow_seconds: CPU of a trainer for a round, the whole shadow thread.
        round_seconds: time of a round in the profiled job, without the center's work.
        center_seconds: CPU of the sync nodes' service threads for a round, all nodes together.
        sync_seconds: CPU of the sync nodes for a round, all threads and nodes.
        round_sent_bytes, round_received_bytes: bytes of a round, from and to the trainer.
        delivered_bytes: bytes of an example from a reader to a trainer.
        pushed_bytes: bytes of an example from a trainer to the embedding nodes.
        looked_up_bytes: bytes of an example from the embedding nodes to a trainer.
        trainer_bytes: memory of a trainer without its workers.
        embedding_bytes: memory of an embedding node without its rows.
        rows_bytes: memory of all rows.
        reader_bytes, sync_bytes, coordinator_bytes: memory of one.
        embedding_threads: writer threads of the profiled embedding nodes.
    """

    batch: int
    step_seconds: float
    locked_seconds: float
    trainer_seconds: float
    parser_seconds: float
    reader_seconds: float
    shard_seconds: float
    writer_seconds: float
    embedding_seconds: float
    coordinator_seconds: float
    round_cpu_seconds: float
    shadow_seconds: float
    round_seconds: float
    center_seconds: float
    sync_seconds: float
    round_sent_bytes: float
    round_received_bytes: float
    delivered_bytes: float
    pushed_bytes: float
    looked_up_bytes: float
    trainer_bytes: float
    embedding_bytes: float
    rows_bytes: float
    reader_bytes: float
    sync_bytes: float
    coordinator_bytes: float
    embedding_threads: int

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of an example over all nodes, without rounds."""
        return self.trainer_seconds + self.reader_seconds + self.embedding_seconds + self.coordinator_seconds


def require_same_model(job: Job, profile: Profile, where: str) -> PlanBasis:
    """Return the basis of a profile of this job's model and costs.

    Raises JobFileError for a profile of another model or other settings.
    """
    basis = profile.measured.basis
    if basis.model_digest != model_digest(job):
        raise JobFileError(
            f"the profile is of another model (digest {basis.model_digest[:12]}, the job's is"
            f" {model_digest(job)[:12]})",
            where=where,
            remedy=_PROFILE_AGAIN,
        )
    settings = cost_settings(job)
    for key in sorted(basis.settings.keys() | settings.keys()):
        profiled, planned = basis.settings.get(key, ""), settings.get(key, "")
        if profiled != planned:
            made = f"with {key} = {profiled}" if profiled else f"without {key}"
            raise JobFileError(
                f"the profile was made {made}, and the job has {planned or 'none'},"
                " which changes what an example costs",
                where=where,
                remedy=_PROFILE_AGAIN,
            )
    return basis


def demands_of(profile: Profile, basis: PlanBasis, where: str) -> Demands:
    """Compute what an example, a step and a round cost.

    Raises DataError if the profile has no times of threads, or nodes of a role did not answer.
    """
    measured = profile.measured
    trainers = measured.of("trainer")
    for role in ("trainer", "reader", "embedding", "coordinator"):
        if not measured.of(role):
            raise DataError(
                f"the profile has no {role}", where=where, remedy="profile for longer (--seconds)"
            )
    examples = _sum(trainers, "trained_examples")
    workers_cpu = sum(_threads(trainer, WORKER) for trainer in trainers)
    if not examples or not workers_cpu:
        raise DataError(
            "the profile has no CPU times of the workers' threads, which Linux reports",
            where=where,
            remedy="profile the job on Linux",
        )
    rounds = _sum(trainers, "rounds")
    readers, shards, centers = measured.of("reader"), measured.of("embedding"), measured.of("sync")
    center = sum(_threads(node, re.compile("center")) for node in centers)
    shadow = sum(_threads(trainer, re.compile("shadow")) for trainer in trainers)
    if not rounds:
        shadow = center = 0.0
    shared = _sum_of(trainers, "shared/")
    memory = _memory(measured, basis)
    return Demands(
        batch=measured.batch,
        step_seconds=workers_cpu / examples * measured.batch,
        locked_seconds=_locked_seconds(measured, examples, workers_cpu),
        trainer_seconds=max(workers_cpu, _cpu(trainers) - shadow) / examples,
        parser_seconds=sum(_threads(reader, re.compile("parser")) for reader in readers) / examples,
        reader_seconds=_cpu(readers) / examples,
        shard_seconds=sum(_threads(node, re.compile("shard")) for node in shards) / examples,
        writer_seconds=sum(_threads(node, _WRITER) for node in shards) / examples,
        embedding_seconds=_cpu(shards) / examples,
        coordinator_seconds=_cpu(measured.of("coordinator")) / examples,
        round_cpu_seconds=_a_round(_sum(trainers, "round_cpu_seconds"), rounds),
        shadow_seconds=_a_round(shadow, rounds),
        round_seconds=_a_round(max(0.0, _sum(trainers, "round_seconds") - center), rounds),
        center_seconds=_a_round(center, rounds),
        sync_seconds=_a_round(_cpu(centers), rounds),
        round_sent_bytes=_a_round(_sum(trainers, "sync_sent_bytes"), rounds),
        round_received_bytes=_a_round(_sum(trainers, "sync_received_bytes"), rounds),
        delivered_bytes=_sum_of(trainers, "from/reader-") / examples,
        # What passes in memory on one machine passes in messages between two: vectors one way, as many
        # gradients the other.
        pushed_bytes=(_sum_of(trainers, "to/embedding-") + shared / 2) / examples,
        looked_up_bytes=(_sum_of(trainers, "from/embedding-") + shared / 2) / examples,
        embedding_threads=basis.embedding_threads,
        rows_bytes=float(basis.rows_bytes),
        **memory,
    )


def _memory(measured: ProfileMeasurements, basis: PlanBasis) -> dict[str, float]:
    """Return each role's memory; the largest node of a role counts."""

    def largest(role: str) -> float:
        return max((node.memory_bytes for node in measured.of(role)), default=0.0)

    rows = basis.rows_bytes / max(1, len(measured.of("embedding")))
    return {
        "trainer_bytes": largest("trainer"),
        "embedding_bytes": max(0.0, largest("embedding") - rows),
        "reader_bytes": largest("reader"),
        "sync_bytes": largest("sync"),
        "coordinator_bytes": largest("coordinator"),
    }


def _locked_seconds(measured: ProfileMeasurements, examples: float, workers_cpu: float) -> float:
    """Estimate the seconds of a step in which the process's interpreter lock is held.

    The sampler finds the lock taken as often as it is held. Where the holder has no core it holds the lock
    for longer, by the factor of its threads' waits for a core. At least the workers' own Python holds it.
    """
    trainers = measured.of("trainer")
    held = 0.0
    for trainer in trainers:
        cpu = sum(time.cpu_seconds for time in trainer.threads.values())
        wait = sum(time.core_wait_seconds for time in trainer.threads.values())
        held += trainer.locked_share * trainer.seconds * (cpu / (cpu + wait) if cpu else 1.0)
    own_python = max(0.0, workers_cpu - _sum(trainers, "compute_cpu_seconds"))
    steps = examples / measured.batch
    return min(workers_cpu, max(held, own_python)) / steps


def _a_round(total: float, rounds: float) -> float:
    return total / rounds if rounds else 0.0


def _sum(nodes: Iterable[NodeMeasurements], count: str) -> float:
    return sum(node.count(count) for node in nodes)


def _sum_of(nodes: Iterable[NodeMeasurements], prefix: str) -> float:
    return sum(node.count(key) for node in nodes for key in node.counts if key.startswith(prefix))


def _cpu(nodes: Iterable[NodeMeasurements]) -> float:
    return sum(node.cpu_seconds for node in nodes)


def _threads(node: NodeMeasurements, names: re.Pattern[str]) -> float:
    return sum(time.cpu_seconds for name, time in node.threads.items() if names.fullmatch(name))
