"""Processes that may open few files: a named error, exit code 8, no traceback and no hang."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from pathlib import Path

import pytest
import zmq
from shadowsync.nodes.runtime.process import CLI, python
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.pipeline.open_files import MOST_NEEDED, raise_limit, too_many_files
from shadowsync.tests.support.runs import small_job, write_job

TEXT = "too many open files: a process may have"


def limited(files: int, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command says that may open so few files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.run(
        python(CLI, *words), preexec_fn=limit, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("files", "trainers"), [(24, 1), (24, 8), (48, 8)])
def test_a_job_says_that_it_may_open_too_few_files(
    click_log: Path, tmp_path: Path, files: int, trainers: int
) -> None:
    more = {"trainer": {"count": trainers}}
    job = write_job(tmp_path / "job.toml", small_job(click_log, tmp_path / "runs"), more)
    done = limited(files, "run", str(job), "--quiet")
    assert done.returncode == ExitCode.RESOURCES, done.stderr
    assert TEXT in done.stderr
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_limit_is_raised_to_what_the_system_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    for limits in ((64, 4096), (64, 1 << 20), (64, resource.RLIM_INFINITY), (4096, 4096), (1 << 20, 1 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=limits: found)
        raise_limit()
    assert given == [(4096, 4096), (MOST_NEEDED, 1 << 20), (MOST_NEEDED, resource.RLIM_INFINITY)]


def test_the_error_is_known_in_every_form() -> None:
    caused = ClusterError("the fork server has ended")
    caused.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    known = [
        OSError(errno.EMFILE, "text"),
        OSError(errno.ENFILE, "text"),
        zmq.ZMQError(errno.EMFILE),
        ImportError("libx.so: cannot open shared object file: Too many open files"),
        caused,
    ]
    assert all(too_many_files(error) is not None for error in known)
    others = [OSError(errno.ENOENT, "no file"), ClusterError("too many nodes"), KeyError("refused")]
    assert not any(too_many_files(error) is not None for error in others)
