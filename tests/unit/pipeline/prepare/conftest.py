"""A source with everything in it, and its prepared folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder
from shadowsync.tests.support.data.prepared import Tree, csv_job, csv_lines

ROWS = 6000
BAD_EVERY = 500


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A job on two CSV files of several spans, with bags, weights, times and malformed rows."""
    folder = tmp_path_factory.mktemp("csv-source")
    (folder / "a.csv").write_text(csv_lines(ROWS, 1, BAD_EVERY))
    (folder / "b.csv").write_text(csv_lines(ROWS // 2, 2))
    return csv_job(folder / "*.csv")


@pytest.fixture(scope="session")
def prepared(source: Tree, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Prepared]:
    """The folder of `source`, not to be changed, and what `prepare` said."""
    folder = tmp_path_factory.mktemp("prepared") / "folder"
    return folder, prepare_folder(job_of_tree(source), folder)
