"""docs/quickstart.md: every block of it is run, in order, in an empty folder, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import shadowsync
from shadowsync.pipeline.report.run_folders.write import read_report
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.page_blocks import Block, blocks_of, run_block, run_blocks

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "quickstart.md"

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


@pytest.mark.timeout(300)
def test_every_block_of_the_page(starter: Starter, tmp_path: Path) -> None:
    blocks = blocks_of(PAGE)
    kinds = [(block.language, block.file) for block in blocks]
    assert kinds == [
        *[("python", ""), ("bash", ""), ("toml", "job.toml"), ("bash", ""), ("bash", "")],
        *[("python", ""), ("python", ""), ("bash", "")],
    ]
    said = run_blocks(blocks, tmp_path, starter)
    assert "written: draft.toml" in said[1]
    report = read_report(tmp_path / "runs" / "job" / "report.json")
    assert present(present(report.eval).ne) < 0.95, "it learned what the page planted"
    assert re.search(r"^ +auc +0\.\d+", said[3], re.M)
    scores = pq.read_table(tmp_path / "scores.parquet")
    assert len(scores) == 20_000
    assert scores["probability"].null_count == 0
    assert re.search(r"torch\.Size\(\[2, 8\]\) row of u1: \d+", said[4])
    assert str(tmp_path / "runs" / "again") in said[5]
    assert (tmp_path / "exported" / "manifest.json").exists()


def test_a_block_that_fails_is_seen(starter: Starter, tmp_path: Path) -> None:
    """The control of the test above: neither commands nor Python go on after an error."""
    failing = (
        ("python", "1 / 0\nprint('shadowsync, version')"),
        ("bash", "shadowsync check no\nshadowsync --version"),
    )
    for language, text in failing:
        code, said = run_block(Block(language, "", text), tmp_path, starter)
        assert code != 0
        assert "version" not in said
