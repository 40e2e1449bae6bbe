"""Writes a profile into the folder of its run, and reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..checkpoint.whole_file import whole_file
from .document import PROFILE_JSON, PROFILE_MARKDOWN, TRACE_JSON, Profile
from .markdown import render_profile


def write_profile(directory: Path, profile: Profile, events: list[dict[str, Any]]) -> None:
    """Writes trace.json, profile.json, its picture and profile.md, each whole or not at all. Any thread may
    call; raises ResourceError."""
    if profile.trace is not None:
        error = profile.trace.clock_error_seconds
        trace = {
            "displayTimeUnit": "ms",
            "otherData": {"clock_error_seconds": error},
            "traceEvents": events,
        }
        with whole_file(directory / TRACE_JSON) as file:
            file.write(json.dumps(trace, separators=(",", ":")).encode() + b"\n")
    with whole_file(directory / PROFILE_JSON) as file:
        file.write(profile.model_dump_json(indent=1).encode() + b"\n")
    # matplotlib takes half a second and 40 MB: only who writes a profile pays for it.
    from .picture import draw_profile

    draw_profile(profile, directory)
    with whole_file(directory / PROFILE_MARKDOWN) as file:
        file.write(render_profile(profile).encode())


def read_profile(path: Path) -> Profile:
    """The profile in the file `path`; raises ValueError if that is none, OSError if it cannot be read."""
    return Profile.model_validate_json(path.read_bytes())
