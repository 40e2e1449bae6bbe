"""The time of the workers, split by cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import NonNegativeFloat

from ..types import ResultModel
from .measurements import NodeMeasurements, ProfileMeasurements, ThreadTime

MOSTLY_TAKEN: Final = 0.6
WORKER: Final = re.compile(r"worker-\d+")


class WorkerTime(ResultModel):
    """Shares of the workers' time, which add up to 1.

    Attributes:
        compute: steps of the dense model, on a core.
        core: steps and handling that waited for a core.
        gil: steps and handling that waited for Python's interpreter lock.
        handling: the worker's own Python: routing, sending, receiving.
        reader: waits for batches while no reader had one ready.
        embedding: waits for vectors, or for replies to pushes, while an embedding node was at work.
        network: waits for batches, vectors or replies to pushes while the messages were on the way.
        sync: waits for a round of synchronization, at a fixed rate.
    """

    compute: NonNegativeFloat
    core: NonNegativeFloat
    gil: NonNegativeFloat
    handling: NonNegativeFloat
    reader: NonNegativeFloat
    embedding: NonNegativeFloat
    network: NonNegativeFloat
    sync: NonNegativeFloat


def occupied_share(node: NodeMeasurements) -> float:
    """Return the share of time in which an embedding node was occupied.

    An occupied node cannot take another request at once: its busiest thread is at work or without a core, or
    the process is stopped.
    """
    # The control thread and the sampler serve no requests.
    serving = [
        (time.cpu_seconds + time.core_wait_seconds) / node.seconds
        for name, time in node.threads.items()
        if name not in ("MainThread", "sampler")
    ]
    busiest = max([node.share("busy_seconds"), *serving])
    return min(1.0, busiest + node.stalled_share)


def behind_share(reader: NodeMeasurements) -> float:
    """Return the share of time in which a reader's batches never waited for credit."""
    idle = max(0.0, reader.share("wait_for_credit_seconds") - reader.stalled_share)
    return min(1.0, max(0.0, 1.0 - idle))


def worker_time(measured: ProfileMeasurements) -> WorkerTime:
    """Split the time of all workers by cause.

    Waits for vectors count as `embedding` by the share of time in which the most occupied embedding node was
    occupied. Waits for batches count as `reader` by the share of time in which readers were behind. The rest
    of both counts as `network`.
    """
    trainers = measured.of("trainer")
    total = sum(trainer.seconds for trainer in trainers) * measured.workers

    def share(name: str) -> float:
        return sum(trainer.count(name) for trainer in trainers) / total if total else 0.0

    occupied = max((occupied_share(node) for node in measured.of("embedding")), default=0.0)
    behind = _mean([behind_share(node) for node in measured.of("reader")])
    for_vectors = share("wait_for_vectors_seconds") + share("wait_for_pushes_seconds")
    for_batches, sync = share("wait_for_reader_seconds"), share("wait_for_sync_seconds")
    compute = share("compute_seconds")
    known = for_vectors + for_batches + sync + compute
    handling = max(0.0, 1.0 - known)
    on_core = _on_core(measured, total)
    if on_core is None:
        on_core = share("compute_cpu_seconds") + handling
    blocked = max(0.0, compute + handling - on_core)
    core, gil = _delays(measured, compute + handling, blocked, total)
    # Steps were delayed by the time that they were off their core; the worker's own Python by the rest.
    in_steps = min(blocked, max(0.0, compute - share("compute_cpu_seconds"))) / blocked if blocked else 0.0
    # Clocks are read one after the other, so the shares may add up to a little more than 1.
    scale = 1.0 / known if known > 1.0 else 1.0
    of_steps = min(compute, (core + gil) * in_steps)
    of_handling = min(handling, core + gil - of_steps)
    return WorkerTime(
        # Rounding must not make it negative where every step waited.
        compute=max(0.0, compute - (core + gil - of_handling)) * scale,
        core=core * scale,
        gil=gil * scale,
        handling=(handling - of_handling) * scale,
        reader=for_batches * behind * scale,
        embedding=for_vectors * occupied * scale,
        network=(for_vectors * (1.0 - occupied) + for_batches * (1.0 - behind)) * scale,
        sync=sync * scale,
    )


def worker_threads(measured: ProfileMeasurements) -> Iterator[ThreadTime]:
    """Yield the times of the threads that train."""
    for trainer in measured.of("trainer"):
        yield from (time for name, time in trainer.threads.items() if WORKER.fullmatch(name))


def _on_core(measured: ProfileMeasurements, total: float) -> float | None:
    """Return the share of time that workers ran on a core; None if unknown."""
    used = [time.cpu_seconds for time in worker_threads(measured)]
    return sum(used) / total if used and total else None


def _delays(
    measured: ProfileMeasurements, working: float, blocked: float, total: float
) -> tuple[float, float]:
    """Split `blocked` into waits for a core and for the GIL.

    `blocked` is the share of time in which workers had work but did not run. The GIL counts only by the share
    of wake-ups that found it taken, because a step may also wait for a device.
    """
    trainers = measured.of("trainer")
    waited = sum(time.core_wait_seconds for time in worker_threads(measured))
    core = min(blocked, waited / total if total else 0.0)
    taken = max((trainer.locked_share for trainer in trainers), default=0.0)
    gil = min(blocked - core, taken * working)
    if taken >= MOSTLY_TAKEN:
        # A thread that waits for the lock wakes every 5 ms to ask for it, and these wake-ups may wait for a
        # core. But if n threads want a lock that is always taken, each waits (n - 1) / n of the time for it.
        others = (measured.workers - 1) / measured.workers
        gil = max(gil, min(blocked, taken * others * working))
    return min(core, blocked - gil), gil


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0
