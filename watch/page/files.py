"""The files of the web page, in memory.

A request can get only these files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("static")
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/figures.js": ("figures.js", "text/javascript"),
    "/runs.js": ("runs.js", "text/javascript"),
    "/topology.js": ("topology.js", "text/javascript"),
    "/words.js": ("words.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/vendor/uPlot.js": ("vendor/uPlot.iife.min.js", "text/javascript"),
    "/vendor/uPlot.css": ("vendor/uPlot.min.css", "text/css"),
    "/vendor/uPlot-LICENSE.txt": ("vendor/uPlot-LICENSE.txt", "text/plain"),
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, kept in memory; `content_type` without a charset."""

    content: bytes
    content_type: str


@cache
def page_files() -> dict[str, PageFile]:
    """Load the files once, by the exact path of the request."""
    return {path: PageFile((FOLDER / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}
