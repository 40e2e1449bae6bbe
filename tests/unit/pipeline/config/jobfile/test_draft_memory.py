"""Drafts whose tables do not fit into the memory of the machine: rows on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.on_disk.shares import disk_shares
from shadowsync.pipeline.jobfile.draft import draft as drafts
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.performance.plan_basis import rows_bytes
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import Columns, write

MIB = 1 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 40,000 users: a growing table of 131,072 rows of 78 bytes, 10.2 MB."""
    ids = [row * 7919 % 40_000 for row in range(80_000)]
    columns: Columns = {"user": [f"u{number}" for number in ids], "clicked": [number % 2 for number in ids]}
    return write(tmp_path_factory.mktemp("log") / "log.csv", columns)


def drafted(log: Path, machine_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Job]:
    """What `shadowsync init` writes on a machine with so much memory."""
    monkeypatch.setattr(drafts, "total_memory_bytes", lambda: machine_bytes)
    out = log.parent / "draft.toml"
    done = CliRunner().invoke(main, ["init", str(log), "--out", str(out), "--force"])
    assert done.exit_code == 0, done.output
    return out.read_text(encoding="utf-8"), load_job(out)


def test_tables_beyond_the_memory_of_the_machine_lie_on_disk(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, job = drafted(log, 12 * MIB, monkeypatch)
    assert job.tables[0].rows == 131_072
    assert job.embedding.memory_bytes == 7 * MIB
    assert job.embedding.folder == ""
    assert "# Full tables need 10.2 MB of memory with optimizer state: more than the 10.1 MB\n" in text
    assert "# that rows may take of this machine's 12.6 MB (memory_fraction).\n" in text
    assert '\n# folder = "/mnt/nvme"' in text
    (share,) = disk_shares(TablePlan.make(job.tables, 1), 0, job.embedding.memory_bytes)
    assert share is not None
    assert share.places > 16 * job.trainer.batch
    checked = CliRunner().invoke(main, ["check", str(log.parent / "draft.toml")])
    assert checked.exit_code == 0, checked.output
    # The control: a little more memory, of which 0.8 may be used, holds the same tables.
    text, whole = drafted(log, 13 * MIB, monkeypatch)
    assert (whole.tables, whole.embedding.memory_bytes) == (job.tables, 0)
    assert "memory" not in text


def test_bfloat16_is_proposed_where_tables_then_fit(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, job = drafted(log, 12 * MIB, monkeypatch)
    (line,) = (line for line in text.splitlines() if "bfloat16" in line)
    narrow = load_job(log.parent / "draft.toml", ["embedding.storage=bfloat16", "embedding.memory_bytes=0"])
    assert rows_bytes(narrow) == 131_072 * (78 - 16)
    assert line.startswith('# storage = "bfloat16"')
    assert line.endswith("full tables then need 8.13 MB, and fit")
    # The control: what finds ids is the larger part, and does not fit into less.
    assert "bfloat16" not in drafted(log, 9 * MIB, monkeypatch)[0]
    assert job.embedding.storage == "float32"


def test_a_table_is_halved_where_what_finds_its_ids_leaves_no_memory_for_rows(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, job = drafted(log, 4 * MIB, monkeypatch)
    assert job.tables[0].rows == 32_768
    assert job.embedding.memory_bytes == 0
    assert "about 40,000 ids are expected: those not trained longest lose their row" in text


def test_a_machine_that_nothing_helps_has_a_draft_all_the_same(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: Columns = {
        "color": [f"c{row % 400}" for row in range(20_000)],
        "clicked": [row % 2 for row in range(20_000)],
    }
    text, job = drafted(write(log.parent / "hashed.csv", columns), 4000, monkeypatch)
    assert job.tables[0].growth is None
    assert "memory_bytes" not in text
