"""A run that has ended, for what is done with its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import in_process_clusters
from shadowsync.tests.support.jobs.runs import small_job, write_job


@pytest.fixture(scope="session")
def saved_run(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the small job; not to be changed."""
    folder = tmp_path_factory.mktemp("saved-run")
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), {"trainer": {"count": 1}})
    with in_process_clusters() as make:
        own = make(job).start()
        assert own.wait() == 0, own.coordinator.text()
    return folder / "runs" / "small"
