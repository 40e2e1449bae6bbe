"""A source with everything in it, and its prepared folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder
from shadowsync.tests.support.data.prepared import Tree, csv_job, csv_lines

ROWS = 6000
BAD_EVERY = 500


def tagged_rows(path: Path, bad_every: int = 0) -> Path:
    """A log with lists of tags and a score for each of them; in every so many rows there is one too many."""
    draw = np.random.default_rng(1)
    lines = ["y,price,user,shop,plain,tags,scores"]
    for at in range(3000):
        tags = [str(tag) for tag in draw.integers(0, 30, draw.integers(0, 6))]
        scores = "|".join(f"{score:.3f}" for score in draw.exponential(1.0, len(tags)))
        user = f"u{draw.integers(500)}" if at % 10 else ""
        bad = "|1" if bad_every and at % bad_every == 7 else ""
        ids = f"{user},s{at % 9},{'|'.join(tags[:2])},{'|'.join(tags)}"
        lines.append(f"{at % 2},{at % 7},{ids},{scores}{bad}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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
