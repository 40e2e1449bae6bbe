"""`shadowsync compare` is killed: the run that it had started ends too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from shadowsync.tests.support.jobs.processes import Starter, is_alive, wait_until
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder


@pytest.mark.matrix
def test_nothing_outlives_a_killed_comparison(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    endless = {"data": {"epochs": 10_000}, "trainer": {"count": 2}, "sync": {"algorithm": "none"}}
    process = starter.fork("compare", str(job_file(endless)), "--algorithms", "none", "--seeds", "1")
    run = RunFolder(tmp_path / "runs" / "small-compare" / "runs" / "latest")
    wait_until(lambda: run.batches() > 5 or process.poll() is not None, "training has begun")
    assert process.poll() is None, process.text()
    offspring = psutil.Process(process.pid).children(recursive=True)
    assert len(offspring) >= 5, "the control: run, coordinator, reader, trainer, embedding"
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(child) for child in offspring), "everything has ended")
    # An orphan is interrupted, not dropped: it writes its checkpoint.
    assert run.report.outcome == "interrupted"
    assert run.report.ledger.adds_up
