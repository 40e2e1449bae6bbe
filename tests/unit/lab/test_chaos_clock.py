"""The time of day jumps for processes of a job, and their monotonic clock does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

import pytest
from shadowsync.lab.chaos.injector import Injector
from shadowsync.lab.chaos.jumping_clock import JUMP_SECONDS, JumpingClock, faketime_library
from shadowsync.lab.chaos.schedule import MACHINE, ScheduledFault
from shadowsync.pipeline.wire.endpoints import local_address
from shadowsync.tests.support.processes import wait_until

pytestmark = pytest.mark.skipif(faketime_library() is None, reason="needs libfaketime")
READER = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


class Clocks:
    """A process that tells its clocks when it is asked to."""

    def __init__(self, clock: JumpingClock) -> None:
        environment = {**os.environ, **clock.environment}
        command = [sys.executable, "-c", READER]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ahead(self) -> tuple[float, float]:
        """Return how far the time of day and the monotonic clock are ahead of this process's."""
        writer: IO[str] | None = self.process.stdin
        reader: IO[str] | None = self.process.stdout
        assert writer is not None
        assert reader is not None
        writer.write("now\n")
        writer.flush()
        of_day, monotonic = (float(word) for word in reader.readline().split())
        return of_day - time.time(), monotonic - time.monotonic()


@pytest.fixture
def clock(tmp_path: Path) -> JumpingClock:
    return JumpingClock(tmp_path / "clock")


@pytest.fixture
def clocks(clock: JumpingClock) -> Iterator[Clocks]:
    own = Clocks(clock)
    # Its input ends with it, and so does the process: killed, it would leave the library's shared memory.
    with own.process:
        yield own


@pytest.mark.parametrize("place", [0, 1])
def test_it_jumps_for_as_long_as_the_fault_lasts(clock: JumpingClock, clocks: Clocks, place: int) -> None:
    assert clocks.ahead() == pytest.approx((0.0, 0.0), abs=30.0)
    faults = Injector(1, local_address(uuid4().hex), {"reader": 1}, clock)
    assert faults.inject(ScheduledFault("clock", MACHINE, place, 0.5, 2.0), now=10.0)
    jumped = JUMP_SECONDS if place else -JUMP_SECONDS
    wait_until(lambda: abs(clocks.ahead()[0] - jumped) < 30.0, "it jumps")
    assert abs(clocks.ahead()[1]) < 30.0
    faults.end(now=11.9)
    assert faults.active
    faults.end(now=12.0)
    assert not faults.active
    wait_until(lambda: abs(clocks.ahead()[0]) < 30.0, "it jumps back")
