"""Writes a report into the folder of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..checkpoint.whole_file import whole_file
from .markdown import render_markdown
from .model import Report

JSON_NAME: Final = "report.json"
MARKDOWN_NAME: Final = "report.md"


def write_report(directory: Path, report: Report) -> None:
    """Writes report.json, the three pictures, where they are wanted, and report.md into `directory`, in this
    order.

    Each file appears whole or not at all and replaces an older one. The numbers come first, so that they
    are there even if a picture cannot be drawn; report.md comes last, when its pictures exist. Any thread
    may call; raises ResourceError.
    """
    with whole_file(directory / JSON_NAME) as file:
        file.write(report.model_dump_json(indent=1).encode() + b"\n")
    if report.pictures:
        # matplotlib takes half a second and 40 MB: only who draws pays for it.
        from .curves import draw_curves

        draw_curves(report, directory)
    with whole_file(directory / MARKDOWN_NAME) as file:
        file.write(render_markdown(report).encode())


def rewrite_texts(directory: Path, report: Report) -> None:
    """Writes report.json and report.md again, with what was known only after `write_report`."""
    with whole_file(directory / JSON_NAME) as file:
        file.write(report.model_dump_json(indent=1).encode() + b"\n")
    with whole_file(directory / MARKDOWN_NAME) as file:
        file.write(render_markdown(report).encode())


def read_report(path: Path) -> Report:
    """The report in the file `path`; raises ValueError if that is none, OSError if it cannot be read."""
    return Report.model_validate_json(path.read_bytes())
