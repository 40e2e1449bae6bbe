"""What an earlier version left is gone on with: its run, its checkpoint, its prepared folder, its plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.before import EPOCHS, EXAMPLES, TRAINED_BATCHES, put_there
from shadowsync.tests.support.processes import Starter
from shadowsync.tests.support.resumed import check_trained_once
from shadowsync.tests.support.runs import RunFolder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return put_there(tmp_path / "old")


def test_its_interrupted_run_is_resumed(place: Path, starter: Starter) -> None:
    process = starter.fork("resume", str(place / "run"), "--quiet", "--set", "report.pictures=false")
    assert process.wait(100.0) == 0, process.text()
    old = RunFolder(place / "run")
    new = RunFolder((place / "latest").resolve())
    assert new.folder != old.folder
    assert new.report.ledger.adds_up
    assert (new.report.resumed_from, new.report.restored_examples) == ("interrupted", TRAINED_BATCHES * 32)
    check_trained_once([old, new], EPOCHS, EXAMPLES)


def test_its_checkpoint_and_its_prepared_folder_start_a_run_of_its_plug_in(
    place: Path, starter: Starter
) -> None:
    """The files that were prepared need not be there any more."""
    (place / "train.csv").unlink()
    job = place / "job.toml"
    lines = job.read_text("utf-8").splitlines()
    job.write_text("\n".join(line for line in lines if not line.startswith(("path", "format"))), "utf-8")
    settings = {
        "run.name": "new",
        "run.directory": str(place / "runs"),
        "start.checkpoint": str(place / "run"),
        "data.prepared": str(place / "prepared"),
        "sync.algorithm": f"{place / 'diloco.py'}:DiLoCo",
        "sync.nodes": "0",
        "report.pictures": "false",
    }
    process = starter.fork(
        "run", str(job), "--quiet", *(f"--set={key}={value}" for key, value in settings.items())
    )
    assert process.wait(100.0) == 0, process.text()
    report = RunFolder(place / "runs" / "new").report
    assert report.ledger.adds_up
    assert report.examples.trained == 2 * EXAMPLES
    assert report.sync.algorithm.endswith("DiLoCo")
