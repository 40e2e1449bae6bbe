"""What the tests start ends with them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CHILD = """
import signal
from shadowsync.tests.support.warm_server import end_with_the_writer_of

end_with_the_writer_of(0)
print("watching", flush=True)
signal.pause()
"""


def test_a_forked_node_ends_when_pytest_is_gone_and_not_before() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "watching\n"
        # A question to the server is no end, and neither is a pause of the child.
        child.stdin.write("{}\n")
        child.stdin.flush()
        child.send_signal(signal.SIGSTOP)
        child.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
        child.stdin.close()
        assert child.wait(10.0) == -signal.SIGKILL
