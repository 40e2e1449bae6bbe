"""Packages that not everybody installs: what each extra brings, and what is said without it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from ..errors import JobFileError

if TYPE_CHECKING:
    from ..config.job import Job

# Modules by the extra that brings them. A test compares them with pyproject.toml.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "web": ("aiohttp",),
    "plots": ("matplotlib",),
    "metrics": ("aiohttp", "prometheus_client"),
    "lab": ("jinja2", "matplotlib", "scipy"),
    "tensorboard": ("tensorboard",),
    "onnx": ("onnxscript",),
}


def missing_modules(extra: str) -> list[str]:
    """List what an extra brings and is not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def require_extra(who: str, extra: str) -> None:
    """Raise JobFileError, which names what to install, where `who` cannot work."""
    if missing := missing_modules(extra):
        raise JobFileError(f"{who} needs {' and '.join(missing)}: {_install(extra)}")


def left_out(job: Job, *, metrics_port: int | None = None) -> str:
    """Say in one line what a job does without, as its extra is not installed; "" if that is nothing.

    `metrics_port`: what a node was given in place of the job's.
    """
    port = job.watch.metrics_port if metrics_port is None else metrics_port
    wanted = (
        ("the pictures of the report", "plots", True),
        ("the page", "web", bool(job.watch.web)),
        ("the metrics", "metrics", bool(port)),
        ("TensorBoard's files", "tensorboard", job.watch.tensorboard),
    )
    without = {extra: what for what, extra, asked in wanted if asked and missing_modules(extra)}
    return f"left out: {', '.join(without.values())}; {_install(*without)} brings it" if without else ""


def _install(*extras: str) -> str:
    return f"pip install 'shadowsync[{','.join(extras)}]'"
