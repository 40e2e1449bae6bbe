"""A run that has ended, for what is done with its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.processes import Starting
from shadowsync.tests.support.runs import small_job, write_job


@pytest.fixture(scope="session")
def saved_run(starting: Starting, click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the small job; not to be changed."""
    folder = tmp_path_factory.mktemp("saved-run")
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), {"trainer": {"count": 1}})
    with starting(folder) as starter:
        process = starter.fork("run", str(job))
        assert process.wait() == 0, process.text()
    return folder / "runs" / "small"
