"""A job of unnamed columns, whose input nobody reads."""

from __future__ import annotations

from typing import Any

from shadowsync.pipeline.config.job import Job


def plain_job(dense: int, categorical: int, **sections: Any) -> Job:
    """A job of so many numbers and tables, with these sections."""
    data = {
        "format": "parquet",
        "path": ["x"],
        "dense_features": dense,
        "categorical_features": categorical,
        **sections.pop("data", {}),
    }
    return Job.model_validate({"data": data, **sections})
