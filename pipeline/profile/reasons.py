"""The measurements behind a verdict, in sentences."""

from __future__ import annotations

from .measured import Measured
from .worker_time import WorkerTime, behind_share, occupied_share


def reasons_of(measured: Measured, time: WorkerTime, bottleneck: str) -> list[str]:
    """A sentence or two on each cause; that on `bottleneck` first."""
    told = {
        "compute": _compute(measured, time),
        "gil": _gil(measured, time),
        "reader": _reader(measured, time),
        "embedding": _embedding(measured, time),
        "network": _network(measured, time),
        "sync": _sync(measured, time),
    }
    first = [told.pop(bottleneck)] if bottleneck in told else []
    return [text for text in (*first, *told.values()) if text]


def percent(share: float) -> str:
    """Of the time, whole percents."""
    return f"{share:.0%}"


def _compute(measured: Measured, time: WorkerTime) -> str:
    trainers = measured.of("trainer")
    steps = sum(trainer.count("trained_examples") for trainer in trainers) / measured.batch
    seconds = sum(trainer.count("compute_seconds") for trainer in trainers)
    each = f", {seconds / steps * 1000:.1f} ms a step of {measured.batch}" if steps else ""
    core = f" and waited {percent(time.core)} for a core" if time.core >= 0.01 else ""
    return (
        f"compute: the workers were in steps of the model {percent(time.compute)} of the time{core}{each}; in"
        f" Python of their own {percent(time.handling)}. The job used {measured.cores_used:.1f} of"
        f" {measured.cores} cores."
    )


def _gil(measured: Measured, time: WorkerTime) -> str:
    if measured.worker_kind == "process":
        return "gil: every worker is a process, with an interpreter lock of its own."
    taken = max((trainer.locked_share for trainer in measured.of("trainer")), default=0.0)
    return (
        f"gil: workers waited {percent(time.gil)} of the time for the interpreter lock; a thread that woke in"
        f" a trainer found it taken {percent(taken)} of the times."
    )


def _reader(measured: Measured, time: WorkerTime) -> str:
    parts = []
    for reader in measured.of("reader"):
        parsed, cpu = reader.share("parse_seconds"), reader.share("parse_cpu_seconds")
        stood = f", stood still {percent(reader.stalled_share)}" if reader.stalled_share >= 0.05 else ""
        parts.append(
            f"{reader.name} read and parsed {percent(parsed)} of the time ({percent(cpu)} on a core) and"
            f" waited for credit {percent(1.0 - behind_share(reader))}{stood}"
        )
    return f"reader: batches that were not ready were waited for {percent(time.reader)}; {'; '.join(parts)}."


def _embedding(measured: Measured, time: WorkerTime) -> str:
    parts = []
    for node in measured.of("embedding"):
        handled = node.count("handled_messages")
        each = node.count("handled_seconds") / handled * 1e3 if handled else 0.0
        stood = f", stood still {percent(node.stalled_share)}" if node.stalled_share >= 0.05 else ""
        parts.append(
            f"{node.name} was occupied {percent(occupied_share(node))} of the time, {each:.2f} ms a request"
            f"{stood}"
        )
    return f"embedding: its nodes were waited for {percent(time.embedding)}; {'; '.join(parts)}."


def _network(measured: Measured, time: WorkerTime) -> str:
    trainers = measured.of("trainer")
    trips = sum(trainer.count("round_trips") for trainer in trainers)
    waited = sum(trainer.count("round_trip_seconds") for trainer in trainers)
    trip = ""
    if trips:
        own = _service_ms(measured)
        trip = (
            f" a lookup that was waited for took {waited / trips * 1e3:.2f} ms, of which the node's"
            f" socket thread worked {own:.2f}; the rest was its queues and the way;"
        )
    links = measured.links
    moved = sum(link.sent + link.received for link in links) / 1e6
    shared = sum(link.shared for link in links) / 1e6
    most = max(links, key=lambda link: max(link.sent, link.received), default=None)
    busiest = ""
    if most is not None:
        way = max(most.sent, most.received) / 1e6
        busiest = f", at most {way:.1f} MB/s one way, between {most.trainer} and {most.other}"
    return (
        f"network: what was on its way was waited for {percent(time.network)};{trip} trainers moved"
        f" {moved:.1f} MB/s{busiest}{f', and {shared:.1f} MB/s in shared memory' if shared else ''}."
    )


def _service_ms(measured: Measured) -> float:
    nodes = measured.of("embedding")
    handled = sum(node.count("handled_messages") for node in nodes)
    spent = sum(node.count("handled_seconds") for node in nodes)
    return spent / handled * 1e3 if handled else 0.0


def _sync(measured: Measured, time: WorkerTime) -> str:
    trainers = measured.of("trainer")
    shadow = sum(
        used.cpu_seconds / trainer.seconds
        for trainer in trainers
        for name, used in trainer.threads.items()
        if name == "shadow"
    )
    rounds = sum(trainer.count("rounds") for trainer in trainers)
    seconds = sum(trainer.count("round_seconds") for trainer in trainers)
    each = f", {seconds / rounds * 1e3:.1f} ms each" if rounds else ""
    background = f"; the shadow threads took {shadow:.2f} cores" if shadow >= 0.005 else ""
    return (
        f"sync ({measured.sync}): workers waited {percent(time.sync)} of the time for {rounds:.0f}"
        f" rounds{each}{background}."
    )
