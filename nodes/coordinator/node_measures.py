"""Growth of each node's counts between two replies to `measure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...pipeline.performance.measured import NodeMeasured, ThreadTime


def measured_between(
    first: Mapping[str, Mapping[str, Any]], last: Mapping[str, Mapping[str, Any]]
) -> list[NodeMeasured]:
    """Take the growth for each node that replied both times."""
    return [
        _between(name, first[name], answer)
        for name, answer in last.items()
        if name in first and answer["clock"] > first[name]["clock"]
    ]


def _between(name: str, first: Mapping[str, Any], last: Mapping[str, Any]) -> NodeMeasured:
    seconds = float(last["clock"]) - float(first["clock"])
    wakes = _grown(first["sampled"], last["sampled"], "wakes")
    locked = _grown(first["sampled"], last["sampled"], "locked_wakes")
    return NodeMeasured(
        name=name,
        role=str(last["role"]),
        machine=str(last["machine"]),
        cores=int(last["cores"]),
        seconds=seconds,
        cpu_seconds=_grown(first["counts"], last["counts"], "cpu_seconds"),
        stalled_share=min(1.0, _grown(first["sampled"], last["sampled"], "stalled_seconds") / seconds),
        locked_share=locked / wakes if wakes else 0.0,
        threads={
            thread: ThreadTime(
                cpu_seconds=max(0.0, times[0] - first["threads"].get(thread, (0.0, 0.0))[0]),
                core_wait_seconds=max(0.0, times[1] - first["threads"].get(thread, (0.0, 0.0))[1]),
            )
            for thread, times in last["threads"].items()
        },
        counts={
            key: float(value) - float(first["counts"].get(key, 0.0))
            for key, value in last["counts"].items()
            if isinstance(value, int | float)
        },
    )


def _grown(first: Mapping[str, Any], last: Mapping[str, Any], key: str) -> float:
    return max(0.0, float(last.get(key, 0.0)) - float(first.get(key, 0.0)))
