"""Which settings workers as processes go with."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import validate_job


def tree(**trainer: Any) -> dict[str, Any]:
    """A job file with these settings of its trainers."""
    return {"data": {"format": "parquet", "path": ["train.parquet"]}, "trainer": trainer}


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "auto"])
def test_processes_need_the_cpu(device: str) -> None:
    with pytest.raises(JobFileError, match=f'trainer.device = "{device}" needs "thread"'):
        validate_job(tree(worker_kind="process", device=device), where="job.toml")
    assert validate_job(tree(worker_kind="thread", device=device), where="job.toml").trainer.device == device
    assert validate_job(tree(worker_kind="process"), where="job.toml").trainer.worker_kind == "process"


def test_another_kind_is_refused_naming_both() -> None:
    with pytest.raises(JobFileError, match=r"trainer\.worker_kind: 'greenlet' given.*'thread' or 'process'"):
        validate_job(tree(worker_kind="greenlet"), where="job.toml")
