"""Faults begin in a process, end when their time has come, and say if there was nothing to meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from shadowsync.lab.chaos import injector
from shadowsync.lab.chaos.injector import HAS_LIMITS, Injector
from shadowsync.lab.chaos.schedule import ScheduledFault
from shadowsync.pipeline.text.wall_clock import CLOCK_FAULTS_VARIABLE
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.tests.support.jobs.processes import wait_until

WRITER = """
import errno, sys, time
from shadowsync.pipeline.text.wall_clock import unix_seconds
for line in sys.stdin:
    if line == "clock\\n":
        # In minutes: the machine may stand still between the two.
        print(round((unix_seconds() - time.time()) / 60), flush=True)
        continue
    try:
        with open(sys.argv[1], "w") as file:
            file.write(line)
        print("written", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


class Writer:
    """A process that writes a file when it is asked to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(path)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, CLOCK_FAULTS_VARIABLE: str(path.parent)},
        )

    def write(self, words: str = "words") -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @property
    def status(self) -> str:
        return str(psutil.Process(self.process.pid).status())


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    own = Writer(tmp_path / "file")
    found = [psutil.Process(own.process.pid)]
    monkeypatch.setattr(
        injector,
        "processes_of_role",
        lambda _, role: found if role == "reader" and found[0].is_running() else [],
    )
    with own.process:
        yield own
        own.process.kill()


@pytest.fixture
def faults(tmp_path: Path) -> Injector:
    return Injector(1, local_address(uuid4().hex), {"reader": 1, "trainer": 1}, tmp_path)


@pytest.mark.skipif(not HAS_LIMITS, reason="limits of a living process are Linux's")
def test_a_full_disk_lasts_as_long_as_it_should(writer: Writer, faults: Injector) -> None:
    assert writer.write() == "written"
    assert faults.inject(ScheduledFault("disk", "reader", 0, 0.5, 2.0), now=10.0)
    assert writer.write() == "EFBIG"
    faults.end(now=11.9)
    assert faults.active
    assert writer.write() == "EFBIG"
    faults.end(now=12.0)
    assert not faults.active
    assert writer.write() == "written"


def test_a_clock_jumps_and_jumps_back(writer: Writer, faults: Injector) -> None:
    assert writer.write("clock") == "0"
    assert faults.inject(ScheduledFault("clock", "reader", 0, 0.5, 2.0, -86_400.0), now=10.0)
    assert writer.write("clock") == "-1440"
    faults.end(now=11.9)
    assert faults.active
    assert writer.write("clock") == "-1440"
    faults.end(now=12.0)
    assert not faults.active
    assert writer.write("clock") == "0"


def test_a_stopped_process_goes_on_and_a_killed_one_does_not(writer: Writer, faults: Injector) -> None:
    assert faults.inject(ScheduledFault("stop", "reader", 0, 0.5, 2.0), now=10.0)
    wait_until(lambda: writer.status == psutil.STATUS_STOPPED, "it stops")
    faults.end(now=12.0)
    assert writer.write() == "written"
    assert faults.inject(ScheduledFault("kill", "reader", 3, 0.5), now=13.0)
    assert writer.process.wait(30.0) == -signal.SIGKILL
    assert not faults.active


def test_nothing_to_meet_is_said(writer: Writer, faults: Injector) -> None:
    assert not faults.inject(ScheduledFault("kill", "trainer", 0, 0.5), now=1.0), "no such process"
    assert not faults.inject(ScheduledFault("cut", "reader", 0, 0.5, 1.0), now=1.0), "no relay"
    assert writer.write() == "written"
