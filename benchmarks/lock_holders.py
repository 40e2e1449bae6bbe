"""Who holds a process's interpreter lock, by looks of py-spy, and whether such looks find what is true.

py-spy must not stop the process for each look (`--nonblocking`), and must have a core at once when its look
is due (a real-time priority, which takes root). Otherwise it gets its core when the thread that it would have
seen goes to sleep: of a lock that is held 15% of the time in pieces of 0.2 ms it then saw 2 to 10%.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOOKS_PER_SECOND = 400
# From there on looks that failed would change the second digit.
MOST_ERRORS = 0.02
THREAD = re.compile(r"thread \((?P<id>\d+)\): (?P<name>[^;]+);")
# Holds the lock for 0.2 ms in the mean and sleeps for 1 ms; tells the share that it held at every line read.
KNOWN = """
import random, sys, threading, time
held, began = 0.0, time.perf_counter()
def hold():
    global held
    while True:
        start = time.perf_counter()
        end = start + 0.0002 * random.uniform(0.2, 1.8)
        while time.perf_counter() < end:
            pass
        held += time.perf_counter() - start
        time.sleep(0.001 * random.uniform(0.2, 1.8))
threading.Thread(target=hold, daemon=True).start()
print("holding", flush=True)
sys.stdin.readline()
print(held / (time.perf_counter() - began), flush=True)
"""


def holders(spy: Path, process: int, seconds: float) -> dict[int, tuple[str, float]]:
    """By thread its name and the share of the looks that found it holding the lock. Raises SystemExit."""
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        out = Path(folder) / "stacks"
        command = [str(spy), "record", "--gil", "--nonblocking", "--idle", "--threads", "--format", "raw"]
        command += ["--rate", str(LOOKS_PER_SECOND), "--duration", f"{seconds:.0f}"]
        command += ["--output", str(out), "--pid", str(process)]
        with _real_time():
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
        failed = re.search(r"Errors: (\d+)", done.stdout + done.stderr)
        if done.returncode or failed is None:
            raise SystemExit(f"{spy} gave nothing; may it look at other processes? {done.stderr[-800:]}")
        looks = LOOKS_PER_SECOND * round(seconds)
        if int(failed[1]) > MOST_ERRORS * looks:
            raise SystemExit(f"{failed[1]} of {looks} looks of {spy} failed: try again on a quieter machine")
        return shares(out.read_text("utf-8"), looks)


def shares(stacks: str, looks: int) -> dict[int, tuple[str, float]]:
    """Of py-spy's raw output: a line a stack, with how often it was seen at its end. A name that was read
    while it changed may have a break in it: such a line has no number and is left out."""
    seen: dict[int, tuple[str, float]] = {}
    for line in stacks.splitlines():
        thread, count = THREAD.match(line), line.rpartition(" ")[2]
        if thread is not None and count.isdigit():
            number = int(thread["id"])
            seen[number] = (thread["name"], seen.get(number, ("", 0.0))[1] + int(count) / looks)
    return seen


def seen_over_true(spy: Path, seconds: float) -> float:
    """The control: what looks find of a lock that is held for a known share of the time, over that share."""
    known = subprocess.Popen(
        [sys.executable, "-c", KNOWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with known:
        assert known.stdin is not None
        assert known.stdout is not None
        known.stdout.readline()
        try:
            seen = sum(share for _, share in holders(spy, known.pid, seconds).values())
            known.stdin.write("\n")
            known.stdin.flush()
            return seen / float(known.stdout.readline())
        finally:
            known.kill()


@contextlib.contextmanager
def _real_time() -> Iterator[None]:
    """Processes that are started in the block have a core as soon as they ask for it. Raises SystemExit."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except PermissionError:
        raise SystemExit("py-spy needs a real-time priority to see what is true: run this as root") from None
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
