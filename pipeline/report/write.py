"""Reading and writing the report in the folder of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..checkpoint.atomic_file import whole_file
from ..jobfile.extras import missing_modules
from .markdown import render_markdown
from .model import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Report

JSON_NAME: Final = "report.json"
MARKDOWN_NAME: Final = "report.md"


def write_report(directory: Path, report: Report) -> None:
    """Write report.json, the three pictures and report.md into `directory`, in this order.

    Without matplotlib, or where `report.pictures` is false, there are no pictures, and report.md links none.

    Each file appears whole or not at all and replaces an older one. The numbers come first, so that they
    are there even if a picture cannot be drawn; report.md comes last, when its pictures exist. Any thread
    may call; raises ResourceError.
    """
    _write_json(directory, report)
    # matplotlib takes half a second and 40 MB: only the process that writes a report pays for it.
    if report.pictures and not missing_modules("plots"):
        from .curves import draw_curves

        draw_curves(report, directory)
    _write_markdown(directory, report)


def rewrite_texts(directory: Path, report: Report) -> None:
    """Write report.json and report.md again, with what became known after `write_report`."""
    _write_json(directory, report)
    _write_markdown(directory, report)


def read_report(path: Path) -> Report:
    """Read report.json. Raises ValueError if the file is not a report, OSError if unreadable."""
    return Report.model_validate_json(path.read_bytes())


def _write_json(directory: Path, report: Report) -> None:
    with whole_file(directory / JSON_NAME) as file:
        file.write(report.model_dump_json(indent=1).encode() + b"\n")


def _write_markdown(directory: Path, report: Report) -> None:
    # A picture that is not in the folder is not linked.
    links = (NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE)
    absent = tuple(f"({name})" for name in links if not (directory / name).exists())
    lines = render_markdown(report).splitlines(keepends=True)
    text = "".join(line for line in lines if not (absent and line.rstrip().endswith(absent)))
    with whole_file(directory / MARKDOWN_NAME) as file:
        file.write(text.encode())
