"""Jobs whose output nobody reads: a closed pipe, a full disk, no standard streams at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shadowsync.lab.comparison.record import write_json
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.plan import make_virtual_plan, result_path, write_plan
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.wire.keys.job_key import JobKey
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder

pytestmark = pytest.mark.usefixtures("starter")

CLI = [sys.executable, "-m", "shadowsync.cli"]
# Only a trainer and an embedding node have to import torch.
FEW_NODES = {"trainer": {"count": 1, "batch": 512}, "sync": {"algorithm": "none"}}


@pytest.fixture
def broken() -> Iterator[int]:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def full() -> Iterator[int]:
    """A file on a full disk."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def trained(folder: Path) -> bool:
    """Whether the run has trained all, with accounts that add up."""
    report = RunFolder(folder).report
    return report.examples.distinct == EXAMPLES and report.ledger.adds_up


@pytest.mark.parametrize(
    ("output", "both"), [("broken", False), pytest.param("full", True, marks=pytest.mark.matrix)]
)
def test_a_job_ends_as_if_it_were_read(
    output: str,
    *,
    both: bool,
    starter: Starter,
    job_file: JobMaker,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    unread: int = request.getfixturevalue(output)
    done = starter.spawn_warm("run", str(job_file(FEW_NODES)), streams=(unread, unread if both else None))
    assert done.wait() == ExitCode.OK, done.text()
    assert "Traceback" not in done.text()
    assert "Exception ignored" not in done.text()
    assert trained(tmp_path / "runs" / "latest")


@pytest.mark.matrix
def test_a_job_without_standard_streams(job_file: JobMaker, tmp_path: Path) -> None:
    """As a daemon: what is opened next must not get their numbers, and what is printed with them."""
    command = " ".join([*CLI, "run", str(job_file(FEW_NODES)), "<&- >&- 2>&-"])
    assert (
        subprocess.run(["sh", "-c", command], timeout=ENOUGH_SECONDS, check=False).returncode == ExitCode.OK
    )
    assert trained(tmp_path / "runs" / "latest")


def test_a_job_that_fails_has_its_code(starter: Starter, job_file: JobMaker, broken: int) -> None:
    job = job_file({"data": {"path": "none.parquet"}})
    assert starter.spawn_warm("run", str(job), streams=(broken, broken)).wait() == ExitCode.DATA


@pytest.mark.matrix
def test_a_comparison_that_nobody_reads(job_file: JobMaker, tmp_path: Path, broken: int) -> None:
    """What it says is the same where its runs have been made."""
    job = load_job(job_file({"trainer": {"batch": 512, "count": 2}}))
    folder = tmp_path / "compared"
    folder.mkdir()
    plan, jobs = make_virtual_plan(job, "none", [2], 1, Timing())
    write_plan(folder, plan, jobs)
    result = run_virtual(job, Timing())
    for run in plan.runs:
        write_json(result_path(folder, run.name), result)
    command = [*CLI, "compare", "--resume", str(folder)]
    done = subprocess.run(command, stdout=broken, stderr=broken, timeout=ENOUGH_SECONDS, check=False)
    assert done.returncode == ExitCode.OK
    assert (folder / "virtual.md").is_file()


@pytest.mark.parametrize("given", [["key", "token", "job.key"], ["--version"]], ids=" ".join)
def test_what_others_read_still_fails(given: list[str], full: int, broken: int, tmp_path: Path) -> None:
    """The control: a command whose output is its purpose says that it was not written."""
    JobKey.generate().write(tmp_path / "job.key")

    def run(output: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *given],
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=ENOUGH_SECONDS,
            check=False,
            text=True,
            cwd=tmp_path,
        )

    done = run(full)
    assert done.returncode == ExitCode.RESOURCES
    assert done.stderr.endswith(
        "standard output: cannot be written (No space left on device); free its disk\n"
    )
    assert done.stderr.count("\n") == 1
    assert not run(broken).stderr


@pytest.mark.parametrize("streams", ["broken", pytest.param("full", marks=pytest.mark.matrix)])
def test_a_command_that_writes_a_file_has_written_it(
    streams: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = "".join(f"u{n % 7},{n},{n % 2}\n" for n in range(100))
    (tmp_path / "log.csv").write_text("user,price,click\n" + rows, encoding="utf-8")
    done = subprocess.run(
        [*CLI, "init", "log.csv"],
        stdout=request.getfixturevalue(streams),
        stderr=subprocess.PIPE,
        timeout=ENOUGH_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    assert (tmp_path / "job.toml").is_file()
