"""Optional packages, and the errors if they are missing.

`EXTRAS` says which extra installs each of them.
"""

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
    """List the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def require_extra(who: str, extra: str) -> None:
    """Raise JobFileError if `who` needs an extra that is missing.

    The error says what to install.
    """
    if missing := missing_modules(extra):
        raise JobFileError(f"{who} needs {' and '.join(missing)}: {_install(extra)}")


def left_out(job: Job, *, metrics_port: int | None = None) -> str:
    """Describe what is left out because an extra is missing.

    The text is one line; "" if nothing is left out. `metrics_port`: the port that a node was given in place
    of the job's.
    """
    port = job.watch.metrics_port if metrics_port is None else metrics_port
    features = (
        ("the pictures of the report", "plots", True),
        ("the page", "web", bool(job.watch.web)),
        ("the metrics", "metrics", bool(port)),
        ("TensorBoard's files", "tensorboard", job.watch.tensorboard),
    )
    missing = {extra: what for what, extra, enabled in features if enabled and missing_modules(extra)}
    return f"left out: {', '.join(missing.values())}; {_install(*missing)} adds it" if missing else ""


def _install(*extras: str) -> str:
    return f"pip install 'shadowsync[{','.join(extras)}]'"
