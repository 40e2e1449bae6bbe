"""A job that manifests are rendered of, and the options of a cluster."""

from __future__ import annotations

from typing import Any

from shadowsync.deployment.pods import KubernetesOptions
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import validate_job

VERSIONS = ("1.33", "1.37")
OPTIONS = KubernetesOptions(
    name="clicks",
    image="registry/shadowsync:1",
    control_image="registry/control:1",
    namespace="ads",
    runs_claim="runs",
    data_claim="data",
    key_secret="clicks-key",
    queue="nightly",
)


def job_of(**sections: dict[str, Any]) -> Job:
    """The job, with these keys of its sections in place of its own."""
    base: dict[str, dict[str, Any]] = {
        "data": {"format": "parquet", "path": ["/data/day-*.parquet"], "readers": 2},
        "model": {"table_rows": 1000, "embedding_dim": 8},
        "trainer": {"count": 3, "workers": 2, "device": "cpu"},
        "embedding": {"nodes": 2, "threads": 3},
        "sync": {"nodes": 1},
    }
    tree = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}
    return validate_job(tree, where="test")
