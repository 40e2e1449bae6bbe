"""A run that has ended, for what is done with its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import shared_run


@pytest.fixture(scope="session")
def saved_run(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the small job; not to be changed."""
    folder = tmp_path_factory.mktemp("saved-run")
    return shared_run(folder, click_log, {"trainer": {"count": 1}}).folder
