"""From `shadowsync prepare` to a report, as a user would; killed in between; and with a wrong folder."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.data.prepared import csv_lines
from shadowsync.tests.support.jobs.deterministic import deterministic, digests
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder, write_job
from shadowsync.tests.support.page_blocks import blocks_of, run_blocks

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "input.md"
QUICKSTART = ROOT / "docs" / "quickstart.md"
NONE = {"sync": {"algorithm": "none"}}


def _run(cluster: ClusterMaker, name: str, folder: str = "") -> RunFolder:
    changes = deterministic(NONE, 1, name)
    data = {**changes.get("data", {}), **({"prepared": folder} if folder else {})}
    return finished(cluster, {**changes, "data": data})


def test_the_same_run_to_the_bit(
    cluster: ClusterMaker, starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    """A deterministic job on the folder ends with the bytes that the job on the source ends with."""
    made = starter.ended("prepare", str(job_file(deterministic(NONE, 1, "made"))), "--out", "prepared")
    assert re.search(r"train: 20,000 rows, label rate 2\d\.\d\d%", made)
    source = _run(cluster, "source")
    prepared = _run(cluster, "prepared-run", str(tmp_path / "prepared"))
    assert digests(source) == digests(prepared)
    assert source.ne == prepared.ne
    assert prepared.evaluation.teacher_ne == source.evaluation.teacher_ne is not None
    assert prepared.report.examples == source.report.examples


def _big_csv(folder: Path) -> Path:
    """Text of some 10 pieces, and a job on it."""
    (folder / "all.csv").write_text(csv_lines(15_000, 1, 1000))
    columns = {
        "y": "label",
        "price": "dense",
        "user": "categorical",
        "tags": {"kind": "multi_hot", "delimiter": "|"},
        "at": "timestamp",
        "w": "weight",
    }
    data = {"format": "csv", "path": "all.csv", "columns": columns, "span_bytes": 1 << 16}
    return write_job(folder / "job.toml", {"data": data, "model": {"table_rows": 300}}, {})


# Waits for a signal once three parts are there; `signal.pause` would miss one that comes just before it.
UP_TO_THREE_PARTS = """
import time
from shadowsync import cli
from shadowsync.pipeline.prepare import run

sync_directory = run.sync_directory

def sync_and_wait(folder):
    sync_directory(folder)
    if (folder / "train-00002.parquet").exists():
        (folder.parent / "waits").touch()
        while True:
            time.sleep(0.05)

run.sync_directory = sync_and_wait
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.matrix)])
def test_killed_in_the_middle_it_goes_on(starter: Starter, tmp_path: Path, number: signal.Signals) -> None:
    job, out = _big_csv(tmp_path), tmp_path / "out"
    starter.ended("prepare", str(job), "--out", "whole", "--quiet")
    script = tmp_path / "prepare.py"
    script.write_text(UP_TO_THREE_PARTS)
    killed = starter.fork("prepare", str(job), "--out", "out", script=script)
    wait_until((tmp_path / "waits").exists, "three parts are there")
    killed.signal(number)
    code = killed.wait()
    assert code == (-9 if number == signal.SIGKILL else 130), killed.text()
    assert len(list(out.glob("train-*.parquet"))) == 3
    assert not (out / "manifest.json").exists()
    if number == signal.SIGINT:
        assert "the same command resumes where it stopped" in killed.text()
        assert "Traceback" not in killed.text()
    assert "has no manifest.json" in starter.ended("run", str(job), "--set", f"data.prepared={out}", code=3)
    assert "of them by an earlier call" in starter.ended("prepare", str(job), "--out", "out")
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(os.listdir(out)) == len(os.listdir(tmp_path / "whole"))


def test_exit_codes_of_what_is_wrong(starter: Starter, tmp_path: Path) -> None:
    job = _big_csv(tmp_path)
    starter.ended("prepare", str(job), "--out", "out", "--quiet")
    prepared = ("--set", f"data.prepared={tmp_path / 'out'}", "--set", "run.name=wrong")
    text = starter.ended("run", str(job), *prepared, "--set", "model.table_rows=301", code=2)
    assert "table user has 301 rows, in the folder 300 rows" in text
    assert not (tmp_path / "runs" / "wrong").exists(), "no node was started"
    said = starter.ended("prepare", str(job), "--out", "out", "--set", "model.table_rows=301", code=3)
    assert "was prepared with other settings; what differs: the rows of the tables" in said
    part = tmp_path / "out" / "train-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    short = starter.ended("run", str(job), *prepared, code=3)
    assert re.search(r"train-00001\.parquet: has \d+ bytes; its manifest states \d+", short)
    starter.ended("prepare", str(job), "--out", "out", "--verify", code=3)
    starter.ended("prepare", str(job), "--out", "out", "--force")
    starter.ended("prepare", str(job), "--out", "out", "--verify")


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs beside it")
def test_every_block_of_the_page(starter: Starter, tmp_path: Path) -> None:
    """docs/input.md, in order, in an empty folder, after the rows and the job file of docs/quickstart.md."""
    rows, _, job = blocks_of(QUICKSTART)[:3]
    run_blocks([rows, job], tmp_path, starter)
    said = run_blocks(blocks_of(PAGE), tmp_path, starter)
    assert "train: 20,000 rows" in said[0]
    assert "all checksums match" in said[0]
    assert (tmp_path / "clicks-prepared" / "statistics.md").exists()
    assert said[-1].splitlines()[-1] == "20000 rows, 185 rows of the users' table"
