"""Optional packages, the extras that install them, and the errors if they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from ..errors import JobFileError

if TYPE_CHECKING:
    from ..config.job import Job

# Modules by the extra that installs them. A test compares this with pyproject.toml.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "web": ("aiohttp", "msgspec", "orjson"),
    "plots": ("matplotlib",),
    "metrics": ("aiohttp", "prometheus_client"),
    "lab": ("matplotlib", "scipy", "simpy"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
    "onnx": ("onnxscript",),
    "kafka": ("confluent_kafka",),
    "kubernetes": ("yaml",),
    "storage": ("obstore",),
    "retrieval": ("faiss",),
    "fast": ("llvmlite", "numba"),
    "ray": ("ray",),
    "lightning": ("lightning",),
    "transformers": ("accelerate", "transformers"),
}


def missing_modules(extra: str) -> list[str]:
    """List the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def require_extra(who: str, extra: str) -> None:
    """Raise JobFileError, which says what to install, if modules of `extra` are missing.

    `who` is the subject of the message: the feature that needs them.
    """
    if missing := missing_modules(extra):
        raise JobFileError(f"{who} needs {' and '.join(missing)}: {_install(extra)}")


def left_out(job: Job, *, metrics_port: int | None = None, has_report: bool = True) -> str:
    """Describe in one line what is left out because an extra is missing.

    Returns "" if nothing is. `metrics_port` is the port given to a node instead of the job's.
    """
    port = job.watch.metrics_port if metrics_port is None else metrics_port
    features = (
        ("the pictures of the report", "plots", has_report),
        ("the page", "web", bool(job.watch.web)),
        ("the metrics", "metrics", bool(port)),
        ("TensorBoard's files", "tensorboard", job.watch.tensorboard),
        ("MLflow's run", "mlflow", bool(job.watch.mlflow)),
        ("the run of Weights & Biases", "wandb", job.watch.wandb),
    )
    missing = {extra: what for what, extra, enabled in features if enabled and missing_modules(extra)}
    return f"left out: {', '.join(missing.values())}; {_install(*missing)} adds it" if missing else ""


def _install(*extras: str) -> str:
    return f"pip install 'shadowsync[{','.join(extras)}]'"
