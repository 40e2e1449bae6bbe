"""What a node says of its health, from what it knows of itself."""

from __future__ import annotations

from collections.abc import Mapping

from .health import Health


def coordinator_health(
    phase: str, trained: int, expected: Mapping[str, int], there: Mapping[str, int]
) -> Health:
    """Of the coordinator. That it answers is all there is to it: that nodes are missing, or die, is the
    job's business."""
    nodes = ", ".join(f"{there[role]} of {count} {role}" for role, count in expected.items() if count)
    figures = {"phase": phase, "trained": trained, "expected": dict(expected), "there": dict(there)}
    return Health(True, f"coordinator: {phase}, {trained:,} examples trained, {nodes}", figures)


def node_health(
    role: str, *, joined: bool, ready: bool, silence_seconds: float, limit_seconds: float
) -> Health:
    """Of any other node: in its job, and its coordinator heard within `limit_seconds`."""
    figures = {"joined": joined, "ready": ready, "coordinator_silent_seconds": silence_seconds}
    if not joined:
        return Health(False, f"{role}: waits for the coordinator", figures)
    if not ready:
        # It sends no heartbeats yet, so the coordinator has nothing to answer.
        return Health(True, f"{role}: gets ready", figures)
    text = f"{role}: heard the coordinator {silence_seconds:.1f} s ago"
    return Health(silence_seconds <= limit_seconds, text, figures)
