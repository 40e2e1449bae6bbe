"""Reading and writing of the report in its run's folder.

`describe_hardware` and `versions` find the machine and its software for the report.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ...atomic_file import write_text
from ...jobfile.extras import missing_modules
from ...performance.memory import total_memory_bytes
from ..document import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Hardware, Report
from ..rendering.markdown import render_markdown
from ..rendering.wording import has_log_loss

JSON_NAME: Final = "report.json"
MARKDOWN_NAME: Final = "report.md"
_PICTURES: Final = (NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE)


def load_pictures() -> None:
    """Import matplotlib for the pictures, if it is installed.

    The import takes half a second, so a process may do it while it waits for others. Any thread may call.
    """
    if not missing_modules("plots"):
        from ..rendering import curves  # noqa: F401


def write_report(directory: Path, report: Report) -> None:
    """Write report.json, report.md and the pictures into `directory`.

    The files are written in this order, then report.md again with links to the three pictures. Pictures come
    last because they take seconds on a busy machine: a process that is ended meanwhile leaves both reports.
    Without matplotlib, or if `report.pictures` is false, there are no pictures and no links.

    Each file appears whole or not at all, and replaces an older one. Any thread may call. Raises
    ResourceError if a file cannot be written.
    """
    _write_json(directory, report)
    _write_markdown(directory, report)
    # Imported here, because matplotlib takes half a second and 40 MB, which only the process that writes a
    # report should pay.
    if report.pictures and not missing_modules("plots"):
        from ..rendering.curves import draw_curves

        draw_curves(report, directory)
        _write_markdown(directory, report)


def rewrite_texts(directory: Path, report: Report) -> None:
    """Write report.json and report.md again, with facts from after `write_report`.

    Raises ResourceError if a file cannot be written.
    """
    _write_json(directory, report)
    _write_markdown(directory, report)


def read_report(path: Path) -> Report:
    """Read report.json.

    Raises ValueError if the file is not a report, OSError if it cannot be read.
    """
    return Report.model_validate_json(path.read_bytes())


def absent_pictures(directory: Path, report: Report) -> tuple[str, ...]:
    """Return the names of wanted pictures that are not in the folder."""
    if not report.pictures or missing_modules("plots"):
        return ()
    pictures = _PICTURES if has_log_loss(report) else _PICTURES[1:]
    return tuple(name for name in pictures if not (directory / name).exists())


def _write_json(directory: Path, report: Report) -> None:
    write_text(directory / JSON_NAME, report.model_dump_json(indent=1) + "\n")


def _write_markdown(directory: Path, report: Report) -> None:
    # Without links to pictures that are not in the folder.
    absent = tuple(f"({name})" for name in _PICTURES if not (directory / name).exists())
    lines = render_markdown(report).splitlines(keepends=True)
    text = "".join(line for line in lines if not (absent and line.rstrip().endswith(absent)))
    write_text(directory / MARKDOWN_NAME, text)


_PACKAGES: Final = (
    "shadowsync",
    "torch",
    "numpy",
    "polars",
    "pyarrow",
    "pyzmq",
    "msgpack",
    "pydantic",
    "safetensors",
)
_CPU_INFO: Final = Path("/proc/cpuinfo")


def describe_hardware(cpu_info: Path = _CPU_INFO) -> Hardware:
    """Describe this machine, as far as this process may use it.

    Unknown facts are None. Any thread may call.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return Hardware(
        cpu_model=_cpu_model(cpu_info),
        cores=len(affinity(0)) if affinity else os.cpu_count(),
        memory_bytes=total_memory_bytes(),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python, the system and the packages, importing none."""
    by_name = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            by_name[name] = version(name)
        except PackageNotFoundError:
            by_name[name] = "not installed"
    return by_name


def _cpu_model(cpu_info: Path) -> str | None:
    if cpu_info.is_file():
        for line in cpu_info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    # For systems other than Linux, and for ARM, whose cpuinfo names no model.
    return platform.processor() or platform.machine() or None
