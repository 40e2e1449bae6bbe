"""Jobs whose output nobody reads: a closed pipe, a full disk, no standard streams at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder

pytestmark = pytest.mark.usefixtures("starter")

CLI = [sys.executable, "-m", "shadowsync.cli"]


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


@pytest.mark.parametrize("streams", ["broken", "full"])
@pytest.mark.parametrize("both", [False, True], ids=["output", "output and errors"])
def test_a_job_ends_as_if_it_were_read(
    streams: str,
    *,
    both: bool,
    job_file: JobMaker,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    output: int = request.getfixturevalue(streams)
    errors = tmp_path / "errors.txt"
    with errors.open("wb") as file:
        done = subprocess.run(
            [*CLI, "run", str(job_file())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if both else file,
            timeout=90,
            check=False,
        )
    assert done.returncode == ExitCode.OK, errors.read_text("utf-8")
    assert "Traceback" not in errors.read_text("utf-8")
    assert "Exception ignored" not in errors.read_text("utf-8")
    assert trained(tmp_path / "runs" / "latest")


def test_a_job_without_standard_streams(job_file: JobMaker, tmp_path: Path) -> None:
    """As a daemon: what is opened next must not get their numbers, and what is printed with them."""
    command = " ".join([*CLI, "run", str(job_file()), "<&- >&- 2>&-"])
    assert subprocess.run(["sh", "-c", command], timeout=90, check=False).returncode == ExitCode.OK
    assert trained(tmp_path / "runs" / "latest")


def test_a_job_that_fails_has_its_code(job_file: JobMaker, broken: int) -> None:
    command = [*CLI, "run", str(job_file({"data": {"path": "none.parquet"}}))]
    done = subprocess.run(command, stdout=broken, stderr=broken, timeout=60, check=False)
    assert done.returncode == ExitCode.DATA


def test_a_comparison_that_nobody_reads(job_file: JobMaker, tmp_path: Path, broken: int) -> None:
    command = [*CLI, "compare", str(job_file()), "--algorithms", "ma", "--seeds", "1"]
    done = subprocess.run(command, stdout=broken, stderr=broken, timeout=150, check=False)
    assert done.returncode == ExitCode.OK
    assert (tmp_path / "runs" / "small-compare" / "compare.html").is_file()


@pytest.mark.parametrize("given", [["algos"], ["--version"], ["--help"]], ids=" ".join)
def test_what_others_read_still_fails(given: list[str], full: int, broken: int) -> None:
    """The control: a command whose output is its purpose says that it was not written."""
    done = subprocess.run(
        [*CLI, *given], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, text=True
    )
    assert done.returncode == ExitCode.RESOURCES
    assert done.stderr.endswith(
        "standard output: cannot be written (No space left on device); free its disk\n"
    )
    assert done.stderr.count("\n") == 1
    again = subprocess.run([*CLI, *given], stdout=broken, stderr=subprocess.PIPE, timeout=60, check=False)
    assert not again.stderr


@pytest.mark.parametrize("streams", ["broken", "full"])
def test_a_command_that_writes_a_file_has_written_it(
    streams: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = "".join(f"u{n % 7},{n},{n % 2}\n" for n in range(100))
    (tmp_path / "log.csv").write_text("user,price,click\n" + rows, encoding="utf-8")
    done = subprocess.run(
        [*CLI, "init", "log.csv"],
        stdout=request.getfixturevalue(streams),
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    assert (tmp_path / "job.toml").is_file()
