"""Spans as the bodies of control messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, get_args

from .span import PartName, Span, SpanKind


def span_to_body(span: Span) -> dict[str, Any]:
    """A span as the body of a message."""
    return asdict(span)


def span_from_body(body: dict[str, Any]) -> Span:
    """A span from the body of a message; raises KeyError or ValueError for anything else."""
    for key, known in (("kind", get_args(SpanKind)), ("part", get_args(PartName))):
        if body[key] not in known:
            raise ValueError(f"a span of the {key} {body[key]!r:.40}")
    return Span(
        number=int(body["number"]),
        path=str(body["path"]),
        kind=body["kind"],
        start=int(body["start"]),
        stop=int(body["stop"]),
        part=body["part"],
        first=int(body["first"]),
        last=int(body["last"]),
        prepared=str(body["prepared"]),
    )
