"""Reading and writing of the report in its run's folder.

It also finds the machine of a run and the versions of its software for the report.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ..atomic_file import atomic_file
from ..jobfile.extras import missing_modules
from ..memory import total_memory_bytes
from .markdown import render_markdown
from .model import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Hardware, Report

JSON_NAME: Final = "report.json"
MARKDOWN_NAME: Final = "report.md"


def load_pictures() -> None:
    """Import what draws the pictures, if it is installed.

    It takes half a second: a process that has to wait for others may call it meanwhile, on any thread.
    """
    if not missing_modules("plots"):
        from . import curves  # noqa: F401


def write_report(directory: Path, report: Report) -> None:
    """Write report.json, report.md and the pictures into `directory`.

    They are three pictures, and all is written in this order; then report.md again, with links to them.
    Without matplotlib, or where `report.pictures` is false, there are no pictures, and report.md links none.

    Each file appears whole or not at all and replaces an older one. Pictures take seconds on a busy machine,
    and somebody who ends the process then still has both reports. Any thread may call; raises ResourceError.
    """
    _write_json(directory, report)
    _write_markdown(directory, report)
    # matplotlib takes half a second and 40 MB: only the process that writes a report pays for it.
    if report.pictures and not missing_modules("plots"):
        from .curves import draw_curves

        draw_curves(report, directory)
        _write_markdown(directory, report)


def rewrite_texts(directory: Path, report: Report) -> None:
    """Write report.json and report.md again.

    They get the facts that became known after `write_report`.
    """
    _write_json(directory, report)
    _write_markdown(directory, report)


def read_report(path: Path) -> Report:
    """Read report.json.

    Raises ValueError if the file is not a report, OSError if it cannot be read.
    """
    return Report.model_validate_json(path.read_bytes())


def _write_json(directory: Path, report: Report) -> None:
    with atomic_file(directory / JSON_NAME) as file:
        file.write(report.model_dump_json(indent=1).encode() + b"\n")


def _write_markdown(directory: Path, report: Report) -> None:
    # A picture that is not in the folder is not linked.
    links = (NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE)
    absent = tuple(f"({name})" for name in links if not (directory / name).exists())
    lines = render_markdown(report).splitlines(keepends=True)
    text = "".join(line for line in lines if not (absent and line.rstrip().endswith(absent)))
    with atomic_file(directory / MARKDOWN_NAME) as file:
        file.write(text.encode())


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

    Any thread may call. What is unknown is None.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return Hardware(
        cpu_model=_cpu_model(cpu_info),
        cores=len(affinity(0)) if affinity else os.cpu_count(),
        memory_bytes=total_memory_bytes(),
    )


def versions() -> dict[str, str]:
    """Versions of Python, the system and the packages.

    None of the packages is imported.
    """
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpu_model(cpu_info: Path) -> str | None:
    if cpu_info.is_file():
        for line in cpu_info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    # Outside Linux, and on ARM, whose cpuinfo names no model.
    return platform.processor() or platform.machine() or None
