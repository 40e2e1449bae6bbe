"""Spans as the bodies of control messages."""

from __future__ import annotations

from typing import Any

from ..pipeline.data.spans import Span


def span_to_body(span: Span) -> dict[str, Any]:
    """A span as the body of a message."""
    return {
        "number": span.number,
        "path": span.path,
        "kind": span.kind,
        "start": span.start,
        "stop": span.stop,
    }


def span_from_body(body: dict[str, Any]) -> Span:
    """A span from the body of a message; raises KeyError or ValueError for anything else."""
    if body["kind"] not in ("bytes", "stream", "row_groups"):
        raise ValueError(f"a span of the kind {body['kind']!r}")
    return Span(
        number=int(body["number"]),
        path=str(body["path"]),
        kind=body["kind"],
        start=int(body["start"]),
        stop=int(body["stop"]),
    )
