"""The reasons for a verdict and the advice, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..text.format import count, data_rate, duration, number, percent
from .measurements import NodeMeasurements, ProfileMeasurements
from .worker_time import WorkerTime, behind_share, occupied_share

# A test checks that every setting named here exists.
MORE_CORES: Final = (
    "Use more cores, or fewer processes on these: steps that were ready waited for a core. More trainers or"
    " workers here would wait for the same cores."
)
PREPARE: Final = (
    "Every run parses its input and hashes the ids again. `shadowsync prepare JOB.toml --out FOLDER` does it"
    " once; with `data.prepared` set to that folder, text is read several times as fast."
)
ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "compute": (
        "More trainers or workers (`trainer.count`, `trainer.workers`), where cores are free.",
        "Cheaper arithmetic: `trainer.precision`, a smaller model (`model.bottom`, `top`, `options`).",
        "Where the worker's own Python is a large part of it, a larger `trainer.batch`.",
    ),
    "reader": (
        "More readers (`data.readers`), where there are enough cores and files for them.",
        "Faster storage, or files closer by, if the reader waited for them instead of parsing.",
    ),
    "network": (
        "Fewer bytes: `codecs.vectors` and `codecs.gradients` as bfloat16 or int8, or a smaller"
        " `model.embedding_dim`.",
        "Trainers and embedding nodes closer to each other, or more embedding nodes, if each has its own"
        " link.",
    ),
    "embedding": (
        "More embedding nodes (`embedding.nodes`), on cores of their own.",
        "Fewer rows in a batch: truncated bags, or fewer tables.",
        "If the process was stopped or had no core: give it one, and see what else runs there.",
    ),
    "disk": (
        "More rows in memory: a larger `embedding.memory_bytes`, or more embedding nodes (`embedding.nodes`)"
        " on other hosts.",
        "A faster disk for `embedding.folder`.",
        "Smaller rows, of which more fit: `embedding.storage` bfloat16, or a smaller `model.embedding_dim`.",
    ),
    "sync": (
        'Synchronization in the background: `sync.mode = "shadow"`; training then never waits for it.',
        "At a fixed rate, fewer rounds: a larger `sync.every`.",
        "Smaller rounds: a codec on `codecs.center_up` and `codecs.center_down`, or on `codecs.peers_up` and"
        " `codecs.peers_down`.",
    ),
    "gil": (
        "More trainers with one worker each: `trainer.count` up, `trainer.workers` down.",
        "Less Python in each step: in your own model, whole tensors instead of loops, and a larger"
        " `trainer.batch`.",
    ),
    "balanced": (
        "Nothing stands out. More of everything (trainers, readers, embedding nodes) scales it; changing one"
        " part alone gains little.",
    ),
}


def deeper(bounds: Sequence[str]) -> str:
    """Return the advice to raise these settings; without numbers a worker hides delays by itself."""
    settings = " and ".join(f"`{key}`" for key in bounds)
    return f'More batches in flight, against a long delay: a larger number, or "auto", for {settings}.'


def reasons_of(measured: ProfileMeasurements, time: WorkerTime, bottleneck: str) -> list[str]:
    """Describe each cause in a sentence or two, `bottleneck` first."""
    reasons = {
        "compute": _compute(measured, time),
        "gil": _gil(measured, time),
        "reader": _reader(measured, time),
        "embedding": _embedding(measured, time),
        "network": _network(measured, time),
        "sync": _sync(measured, time),
    }
    cause = "embedding" if bottleneck == "disk" else bottleneck
    first = [reasons.pop(cause)] if cause in reasons else []
    return [*first, *reasons.values()]


def _total(nodes: list[NodeMeasurements], name: str) -> float:
    return sum(node.count(name) for node in nodes)


def _stopped(node: NodeMeasurements) -> str:
    return f", was stopped {percent(node.stalled_share)}" if node.stalled_share >= 0.05 else ""


def _compute(measured: ProfileMeasurements, time: WorkerTime) -> str:
    trainers = measured.of("trainer")
    steps = _total(trainers, "trained_examples") / measured.batch
    step_seconds = _total(trainers, "compute_seconds") / steps if steps else 0.0
    each = f", {duration(step_seconds)} per step of {count(measured.batch)}" if steps else ""
    core = f" and waited {percent(time.core)} for a core" if time.core >= 0.01 else ""
    return (
        f"compute: the workers were in steps of the model {percent(time.compute)} of the time{core}{each}; in"
        f" their own Python {percent(time.handling)}. The job used {number(measured.cores_used, 1)} of"
        f" {measured.cores} cores."
    )


def _gil(measured: ProfileMeasurements, time: WorkerTime) -> str:
    taken = max((trainer.locked_share for trainer in measured.of("trainer")), default=0.0)
    return (
        f"gil: workers waited {percent(time.gil)} of the time for the interpreter lock; {percent(taken)} of"
        " the wake-ups in a trainer found it taken."
    )


def _reader(measured: ProfileMeasurements, time: WorkerTime) -> str:
    parts = [
        f"{reader.name} read and parsed {percent(reader.share('parse_seconds'))} of the time"
        f" ({percent(reader.share('parse_cpu_seconds'))} on a core) and waited for credit"
        f" {percent(1.0 - behind_share(reader))}{_stopped(reader)}"
        for reader in measured.of("reader")
    ]
    return f"reader: workers waited {percent(time.reader)} for batches; {'; '.join(parts)}."


def _embedding(measured: ProfileMeasurements, time: WorkerTime) -> str:
    parts = [
        f"{node.name} was occupied {percent(occupied_share(node))} of the time,"
        f" {duration(_request_seconds([node]))} per request{_waited_for_disk(node)}{_stopped(node)}"
        for node in measured.of("embedding")
    ]
    return f"embedding: workers waited {percent(time.embedding)} for its nodes; {'; '.join(parts)}."


def _waited_for_disk(node: NodeMeasurements) -> str:
    share = node.share("disk_wait_seconds")
    return f", waited {percent(share)} of the time for its disk" if share >= 0.005 else ""


def disk_share(measured: ProfileMeasurements) -> float:
    """Return the largest part of a busy embedding node's work that is waiting for its disk."""
    nodes = [(node.share("disk_wait_seconds"), occupied_share(node)) for node in measured.of("embedding")]
    return max((min(1.0, waited / occupied) for waited, occupied in nodes if occupied > 0), default=0.0)


def _request_seconds(nodes: list[NodeMeasurements]) -> float:
    """Return the mean seconds that a node's socket thread works on a request."""
    handled = _total(nodes, "handled_messages")
    return _total(nodes, "handled_seconds") / handled if handled else 0.0


def _network(measured: ProfileMeasurements, time: WorkerTime) -> str:
    trainers, links = measured.of("trainer"), measured.links
    trips = _total(trainers, "round_trips")
    trip = ""
    if trips:
        trip_seconds = _total(trainers, "round_trip_seconds") / trips
        own_seconds = _request_seconds(measured.of("embedding"))
        trip = (
            f" a lookup took {duration(trip_seconds)}, {duration(own_seconds)} of it in the node's socket"
            " thread, the rest in queues and on the network;"
        )
    moved = data_rate(sum(link.sent + link.received for link in links))
    shared = sum(link.shared for link in links)
    most = max(links, key=lambda link: max(link.sent, link.received), default=None)
    busiest = ""
    if most is not None:
        way = data_rate(max(most.sent, most.received))
        busiest = f", at most {way} one way, between {most.trainer} and {most.other}"
    return (
        f"network: workers waited {percent(time.network)} for messages on the way;{trip} trainers moved"
        f" {moved}{busiest}{f', and {data_rate(shared)} in shared memory' if shared else ''}."
    )


def _sync(measured: ProfileMeasurements, time: WorkerTime) -> str:
    trainers = measured.of("trainer")
    shadow = sum(
        trainer.threads["shadow"].cpu_seconds / trainer.seconds
        for trainer in trainers
        if "shadow" in trainer.threads
    )
    rounds = _total(trainers, "rounds")
    each = f", {duration(_total(trainers, 'round_seconds') / rounds)} each" if rounds else ""
    background = f"; the shadow threads took {number(shadow, 2)} cores" if shadow >= 0.005 else ""
    return (
        f"sync ({measured.sync}): workers waited {percent(time.sync)} of the time for {count(rounds)}"
        f" rounds{each}{background}."
    )
