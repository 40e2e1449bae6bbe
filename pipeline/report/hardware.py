"""The machine of a run, and the versions of its software."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ..memory import total_memory_bytes
from .model import Hardware

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
    """Versions of Python, the system and the packages; imports none of them."""
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
