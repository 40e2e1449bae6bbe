"""A profile in words, for paper and for the terminal alike."""

from __future__ import annotations

from typing import Final

from .document import TRACE_JSON, Profile
from .worker_time import WorkerTime

CROWDED_SHARE: Final = 1 / 3
HEADLINES: Final = {
    "compute": "The bottleneck is compute: the workers' own work takes {share} of their time",
    "reader": "The bottleneck is the reader: workers wait {share} of their time for batches",
    "network": "The bottleneck is the network: workers wait {share} of their time for what is on its way",
    "embedding": "The bottleneck is the embedding nodes: workers wait {share} of their time for them",
    "sync": "The bottleneck is synchronization: workers wait {share} of their time for rounds",
    "gil": "The bottleneck is the GIL: workers wait {share} of their time for Python's interpreter lock",
    "balanced": "There is no bottleneck: no cause takes a third of the workers' time",
}
CAUSES: Final = {
    "compute": "in steps of the model",
    "core": "ready to work, without a core",
    "gil": "ready to work, without the interpreter lock",
    "handling": "in the worker's own Python",
    "reader": "waiting for batches: reader",
    "embedding": "waiting for vectors: embedding nodes",
    "network": "waiting for vectors and batches: network",
    "sync": "waiting for synchronization",
}


def headline(profile: Profile) -> str:
    """The verdict in a sentence."""
    verdict = profile.verdict
    text = HEADLINES[verdict.bottleneck].format(share=f"{verdict.share:.0%}")
    if verdict.bottleneck == "compute" and verdict.time.core >= CROWDED_SHARE:
        text += f", {verdict.time.core:.0%} without a core to run on"
    return f"{text}."


def how(profile: Profile) -> str:
    """What was measured, for how long, and how fast it was."""
    measured = profile.measured
    trainers = len(measured.of("trainer"))
    return (
        f"{measured.seconds:.1f} s of training by {trainers} trainer{'s' * (trainers != 1)} with"
        f" {measured.workers} worker{'s' * (measured.workers != 1)} each:"
        f" {profile.examples_per_second:,.0f} examples/s."
    )


def causes(time: WorkerTime) -> list[tuple[str, float]]:
    """Each part of the workers' time in words with its share, the largest first."""
    parts = [(words, float(getattr(time, cause))) for cause, words in CAUSES.items()]
    return sorted(parts, key=lambda part: -part[1])


def trace_words(profile: Profile) -> str:
    """What the trace is and how to open it; empty without one."""
    trace = profile.trace
    if trace is None:
        return ""
    clocks = "one clock"
    if trace.clock_error_seconds:
        clocks = f"clocks that may be {trace.clock_error_seconds * 1e3:.2f} ms apart"
    return (
        f"{TRACE_JSON}: {trace.seconds:g} s of every thread of every node, {trace.events:,} events by"
        f" {clocks}; open it in https://ui.perfetto.dev or chrome://tracing."
    )
