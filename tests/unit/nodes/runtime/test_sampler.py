"""What keeps a process: the interpreter lock, a stop, or nothing.

How wake-ups are told apart is tested on a clock that the test sets, as a machine may be busy with something
else at any moment; that a kernel says of a lock and of a stop what the rule goes by, on real ones.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from shadowsync.nodes.runtime import tracing
from shadowsync.nodes.runtime.tracing import NOTED_LOOKS, PERIOD_SECONDS, Sampler, thread_figures
from shadowsync.tests.support.jobs.processes import wait_until

LONG_SECONDS = 0.3
on_linux = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell waits for a core"
)


class SetTime:
    """Clock and kernel of one sampler's thread.

    Attributes:
        now: what the clock says, in seconds.
        core: seconds of waiting for a core, and turns on one.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.core = (0.0, 0)
        self.sleeping = threading.Semaphore(0)
        self._wake = threading.Semaphore(0)
        self._thread = threading.current_thread()
        self.while_asked: Callable[[], None] = lambda: None

    def sleep(self, _: float) -> None:
        """The sampler's thread sleeps until `wake`; who asks for figures does `while_asked`."""
        if threading.current_thread() is self._thread:
            self.while_asked()
        else:
            self.sleeping.release()
            assert self._wake.acquire(timeout=60.0)

    def pass_by(self, late: float, waited: float, turns: int) -> None:
        """A period, and more seconds, of them so many without a core."""
        self.now += PERIOD_SECONDS + late
        self.core = (self.core[0] + waited, self.core[1] + turns)

    def wake(self) -> None:
        """The sampler's thread takes note, and sleeps again."""
        self._wake.release()
        assert self.sleeping.acquire(timeout=60.0)

    def end(self, sampler: Sampler) -> None:
        """Lets it run to its end."""
        sampler._stop.set()
        self._wake.release()
        sampler.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    own = SetTime()
    monkeypatch.setattr(tracing, "time", SimpleNamespace(monotonic=lambda: own.now, sleep=own.sleep))
    monkeypatch.setattr(tracing, "_core_waits", lambda _: own.core)
    return own


@pytest.fixture
def sampler(clock: SetTime) -> Iterator[Sampler]:
    """One that sleeps."""
    own = Sampler()
    own.start()
    assert clock.sleeping.acquire(timeout=60.0)
    yield own
    clock.end(own)


@pytest.mark.parametrize(
    ("late", "waited", "turns", "kept_by"),
    [
        (0.0001, 0.0, 1, "nothing"),
        # It would have gone on but for a core.
        (0.005, 0.0049, 1, "nothing"),
        (2.0, 2.0, 3, "nothing"),
        (0.005, 0.0, 1, "lock"),
        # Who waits for the lock asks for it every 5 ms.
        (0.3, 0.0, 60, "lock"),
        (0.3, 0.1, 40, "lock"),
        (0.3, 0.0, 1, "stop"),
        (2.0, 0.0, 3, "stop"),
        (2.0, 0.5, 3, "stop"),
    ],
)
def test_what_kept_a_wake_up(
    clock: SetTime, sampler: Sampler, late: float, waited: float, turns: int, kept_by: str
) -> None:
    for _ in range(2):
        clock.pass_by(late, waited, turns)
        clock.wake()
    figures = sampler.figures()
    assert (figures["wakes"], figures["locked_wakes"]) == (2, 2 * (kept_by == "lock"))
    stood = 2 * (late - waited + PERIOD_SECONDS / 2) if kept_by == "stop" else 0.0
    assert figures["stalled_seconds"] == pytest.approx(stood)


def test_who_asks_before_the_sampler_has_woken_is_told_of_the_stop_too(
    clock: SetTime, sampler: Sampler
) -> None:
    clock.pass_by(0.5, 0.0, 1)
    seen: list[float] = []

    def it_wakes() -> None:
        seen.append(sampler._stalled_seconds)
        clock.wake()

    clock.while_asked = it_wakes
    assert sampler.figures()["stalled_seconds"] == pytest.approx(0.5 + PERIOD_SECONDS / 2)
    assert seen == [0.0], "the control: nothing was noted before it was asked"


def test_a_stop_while_figures_are_asked_for_is_told_too(clock: SetTime, sampler: Sampler) -> None:
    clock.pass_by(0.5, 0.0, 1)
    left = [lambda: clock.pass_by(0.9, 0.0, 1), clock.wake]
    clock.while_asked = lambda: left.pop(0)()
    assert sampler.figures()["stalled_seconds"] == pytest.approx(0.5 + 0.9 + 1.5 * PERIOD_SECONDS)


def test_who_asks_does_not_wait_for_ever(clock: SetTime, sampler: Sampler) -> None:
    clock.pass_by(0.5, 0.0, 1)
    looks: list[float] = []
    clock.while_asked = lambda: looks.append(clock.now)
    assert sampler.figures()["wakes"] == 0
    assert len(looks) == NOTED_LOOKS


@on_linux
def test_a_thread_that_keeps_the_lock_is_no_stop() -> None:
    """The kernel counts how often who waits for the lock asks for it."""
    # Unlike those of CDLL, a function of PyDLL is called with the lock.
    keep = ctypes.PyDLL(None).usleep
    sampler = Sampler()
    sampler.start()

    def locked() -> bool:
        before = sampler.figures()
        keep(int(LONG_SECONDS * 1e6))
        wait_until(lambda: sampler.figures()["wakes"] > before["wakes"], "it wakes")
        after = sampler.figures()
        grown = {key: after[key] - before[key] for key in before}
        return grown == {"wakes": 1, "locked_wakes": 1, "stalled_seconds": 0.0}

    try:
        wait_until(locked, "one wake-up in that time, kept by the lock")
        assert "sampler" in thread_figures()
    finally:
        sampler.stop()


STOPPED = """
import sys
from shadowsync.nodes.runtime.tracing import Sampler

sampler = Sampler()
sampler.start()
for line in sys.stdin:
    print(sampler.figures()["stalled_seconds"], flush=True)
sampler.stop()
"""


@on_linux
def test_a_stop_is_no_lock() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )

    def stalled() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print("?", file=process.stdin, flush=True)
        return float(process.stdout.readline())

    def stop_is_seen() -> bool:
        before = stalled()
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
        stopped_at = time.monotonic()
        wait_until(lambda: time.monotonic() > stopped_at + LONG_SECONDS, "time passes")
        process.send_signal(signal.SIGCONT)
        # Before it was due it may have slept for a period.
        return stalled() - before >= LONG_SECONDS - PERIOD_SECONDS

    with process:
        try:
            # It may be stopped at the one moment of a period when it does not sleep.
            wait_until(stop_is_seen, "a stop is noted")
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60.0) == 0
        finally:
            process.kill()
