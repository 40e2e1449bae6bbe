"""What keeps a process: the interpreter lock, a stop, or nothing. Each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROBE = """
import json, sys, threading, time
from shadowsync.nodes.runtime.tracing import Sampler, thread_figures

hogs = int(sys.argv[1])
loop = compile(sys.argv[2], "loop", "exec")
over = False

def spin():
    while not over:
        exec(loop, {})

threads = [threading.Thread(target=spin, name=f"hog-{at}") for at in range(hogs)]
for thread in threads:
    thread.start()
sampler = Sampler()
sampler.start()
print("ready", flush=True)
time.sleep(1.5)
# On slow cores those loops leave the sampler few turns a second.
while hogs and sampler.figures()["wakes"] < 10:
    time.sleep(0.1)
figures = sampler.figures() | {"threads": thread_figures()}
over = True
for thread in threads:
    thread.join()
sampler.stop()
print(json.dumps(figures))
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell waits for a core"
)


# The first gives the lock away every 5 ms, the other, a loop in C over Python's numbers, at its end.
SHORT = "for number in range(10_000): number + 1"
LONG = "sum(range(3_000_000))"


def sampled(hogs: int, loop: str = SHORT, *, stops: int = 0) -> dict[str, float]:
    """What a process with so many threads in a loop saw in 1.5 s or more, stopped 0.3 s so many times."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(hogs), loop], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(stops):
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(0.3)
        process.send_signal(signal.SIGCONT)
        threading.Event().wait(0.05)
    with process:
        figures: dict[str, float] = json.loads(process.stdout.read())
    assert process.returncode == 0
    return figures


def test_an_idle_process_finds_the_lock_free() -> None:
    figures = sampled(0)
    assert figures["wakes"] >= 10
    assert figures["locked_wakes"] < 0.5 * figures["wakes"]
    assert figures["stalled_seconds"] < 0.3


@pytest.mark.parametrize("loop", [SHORT, LONG])
def test_loops_keep_the_lock(loop: str) -> None:
    figures = sampled(2, loop)
    assert figures["locked_wakes"] > 0.6 * figures["wakes"] > 0
    assert figures["stalled_seconds"] < 0.3
    threads = figures["threads"]
    assert isinstance(threads, dict)
    assert threads["hog-0"][0] > 0.05


def test_a_stop_is_no_lock() -> None:
    figures = sampled(0, stops=3)
    assert 0.5 < figures["stalled_seconds"] < 1.6


ASKED_FIRST = """
import time
from shadowsync.nodes.runtime.tracing import Sampler

sampler = Sampler()
sampler.start()
time.sleep(0.2)
before = time.monotonic()
print("ready", flush=True)
while (now := time.monotonic()) - before < 0.2:
    before = now
    time.sleep(0.002)
print(sampler.figures()["stalled_seconds"])
sampler.stop()
"""


def test_who_asks_before_the_sampler_has_woken_is_told_of_the_stop_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", ASKED_FIRST], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    threading.Event().wait(0.5)
    process.send_signal(signal.SIGCONT)
    with process:
        assert float(process.stdout.read()) > 0.35
    assert process.returncode == 0
