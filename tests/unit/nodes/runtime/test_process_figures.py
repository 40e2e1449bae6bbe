"""What a process tells of its own memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A small process, whose parent is a large one; what was read before and after it bounds what is told.
PROBE = """
from shadowsync.nodes.runtime.process_figures import process_metrics

def kernel(key):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key + ":"))

before = kernel("VmHWM")
reported = process_metrics()
print(before <= reported["peak_memory_bytes"] <= kernel("VmHWM"), 0 < reported["memory_bytes"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the VmHWM of Linux")
def test_the_peak_is_its_own_and_not_that_of_who_started_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
