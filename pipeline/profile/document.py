"""profile.json: what was measured, what follows from it, and how the trace was taken."""

from __future__ import annotations

from typing import Final, Literal

from .measured import Amount, Link, Measured, Part
from .verdict import Verdict, judge

FORMAT_VERSION: Final = 1
PROFILE_JSON: Final = "profile.json"
PROFILE_MARKDOWN: Final = "profile.md"
PROFILE_PICTURE: Final = "profile.png"
TRACE_JSON: Final = "trace.json"


class TraceNote(Part):
    """The trace beside the profile: its length, its events, and by how much the clocks of machines in it may
    be apart (0 for one machine, whose processes read one clock)."""

    seconds: Amount
    events: int
    clock_error_seconds: Amount


class Profile(Part):
    """The whole file.

    Attributes:
        notes: what a reader should know of how it was measured.
        trace: None where nothing could be traced.
    """

    format_version: Literal[1] = FORMAT_VERSION
    examples_per_second: Amount
    verdict: Verdict
    measured: Measured
    links: list[Link]
    notes: list[str]
    trace: TraceNote | None

    @classmethod
    def of(cls, measured: Measured, notes: list[str], trace: TraceNote | None) -> Profile:
        """With the verdict on what was measured."""
        return cls(
            examples_per_second=measured.examples_per_second,
            verdict=judge(measured),
            measured=measured,
            links=measured.links,
            notes=notes,
            trace=trace,
        )
