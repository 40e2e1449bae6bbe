"""Commands that may open few files: they work, or end with a named error and exit code 8."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shadowsync.nodes.runtime.process import CLI, files_of, python
from shadowsync.nodes.supervisor.starter import METHOD_VARIABLE
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.jobs.runs import RunFolder, small_job, write_job

TEXT = "too many open files: a process may have"
# Standard streams, those of the loop, and of the fork server; the library that a recent libffi keeps open.
OPEN_AT_THE_START = 11
# Only what hangs takes so long.
LIMIT_SECONDS = 240.0


def limited(files: int, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command says that may open so few files."""
    # Not by `preexec_fn`: a lock that another thread has while this process forks is held for ever there.
    shell = ("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh")
    command = [*shell, *python(CLI, *words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


def refuses(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether it ended with the named error, and said nothing else."""
    said = done.stderr.splitlines()
    return (
        done.returncode == ExitCode.RESOURCES
        and len(said) == 1
        and TEXT in said[0]
        and "ulimit -n" in said[0]
    )


@pytest.mark.parametrize(
    ("files", "trainers", "method"),
    [
        (28, 1, "forkserver"),
        pytest.param(12, 1, "forkserver", marks=pytest.mark.matrix),
        pytest.param(12, 1, "spawn", marks=pytest.mark.matrix),
        pytest.param(48, 8, "forkserver", marks=pytest.mark.matrix),
    ],
)
def test_a_job_says_that_it_may_open_too_few_files(
    click_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, trainers: int, method: str
) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, method)
    more = {"trainer": {"count": trainers}}
    job = write_job(tmp_path / "job.toml", small_job(click_log, tmp_path / "runs"), more)
    done = limited(files, "run", str(job), "--quiet")
    assert refuses(done), (done.returncode, done.stderr)


ONE_TRAINER = {"trainer": {"count": 1}}
ALL_REDUCE = {"trainer": {"count": 4, "workers": 2}, "sync": {"algorithm": "ma"}}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("more", "method"),
    [
        pytest.param(ONE_TRAINER, "forkserver", id="one trainer"),
        # Of several trainers those have more files, however they are started.
        pytest.param(ONE_TRAINER, "spawn", id="one trainer, spawned"),
        pytest.param(ALL_REDUCE, "forkserver", id="all-reduce"),
    ],
)
def test_a_job_trains_with_as_many_files_as_it_asks_for(
    click_log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, dict[str, object]],
    method: str,
) -> None:
    """Its input is of far more files than its processes may open: each is closed once it is read."""
    monkeypatch.setenv(METHOD_VARIABLE, method)
    rows = pq.read_table(next(click_log.glob("train-*.parquet"))).slice(0, 2000)
    for first in range(0, 2000, 10):
        pq.write_table(rows.slice(first, 10), tmp_path / f"part-{first:04}.parquet")
    more = {**more, "data": {"path": str(tmp_path / "part-*.parquet")}}
    job = write_job(tmp_path / "job.toml", small_job(click_log, tmp_path / "runs"), more)
    files = files_of(load_job(job)) + OPEN_AT_THE_START
    assert files < 200
    done = limited(files, "run", str(job), "--quiet")
    assert done.returncode == ExitCode.OK, done.stderr
    report = RunFolder(tmp_path / "runs" / "latest").report
    assert report.examples.distinct == 2000
    assert report.ledger.adds_up


REFUSED = {
    "top": ("top", "--join", "tcp://127.0.0.1:1"),
    "hub": ("hub",),
    "compare": ("compare", "JOB", "--algorithms", "easgd,ma"),
    "chaos": ("chaos", "JOB", "--kills", "1", "--out", "OUT"),
}
DONE = {
    "check": ("check", "JOB"),
    "prepare": ("prepare", "JOB", "--out", "OUT"),
    "predict": ("predict", "RUN", "--data", "DATA", "--out", "OUT"),
    "eval": ("eval", "RUN", "--data", "DATA"),
}


# `make test` has one that is refused and one that works.
IN_GATE = ("top", "check")
COMMANDS = [
    pytest.param(name, marks=() if name in IN_GATE else pytest.mark.matrix) for name in (*REFUSED, *DONE)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_or_names_the_limit(
    command: str, click_log: Path, saved_run: Path, tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job.toml", small_job(click_log, tmp_path / "runs"), {})
    given = {"JOB": job, "RUN": saved_run, "OUT": tmp_path / "out", "DATA": click_log / "eval-*.parquet"}
    words = [str(given.get(word, word)) for word in (REFUSED | DONE)[command]]
    done = limited(12, *words)
    if command in REFUSED:
        assert refuses(done), (done.returncode, done.stderr)
    else:
        assert done.returncode == ExitCode.OK, done.stderr
