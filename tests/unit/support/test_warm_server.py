"""What the tests start ends with them."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
from shadowsync.tests.support.jobs.processes import is_alive, wait_until

PYTEST = """
import os, signal
from pathlib import Path
from shadowsync.tests.support.jobs.processes import THREADS, Starter
from shadowsync.tests.support.jobs.warm_server import WarmServer

environment = os.environ | THREADS
server = WarmServer(environment)
starter = Starter(server, environment, Path.cwd())
for name in ("coordinator", "trainer"):
    starter.fork(name, script=Path("child.py"))
print("started", flush=True)
signal.pause()
"""


def test_a_forked_node_ends_when_pytest_is_gone_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import signal; signal.pause()", encoding="utf-8")
    (tmp_path / "pytest.py").write_text(textwrap.dedent(PYTEST), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "pytest.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as pytest:
        assert pytest.stdout is not None
        assert pytest.stdout.readline() == "started\n"
        offspring = psutil.Process(pytest.pid).children(recursive=True)
        assert len(offspring) == 4, "two servers and two nodes"
        _, alive = psutil.wait_procs(offspring, timeout=0.2)
        assert len(alive) == 4
        pytest.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, offspring)), "all have ended")
