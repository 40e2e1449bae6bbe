"""The hosts of `benchmarks/namespaces.py`: what they share, which is nothing, and what their links count.

Needs the right to make namespaces, as root has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SENT_BYTES = 1_000_000
# In a network of its own, as the program that makes hosts needs one.
PROGRAM = """
import json, subprocess, sys
from pathlib import Path
from shadowsync.benchmarks.namespaces import network

SENT_BYTES = int(sys.argv[2])
LISTEN = '''
import socket
with socket.create_server(("0.0.0.0", 5555)) as server:
    print("listens", flush=True)
    with server.accept()[0] as one:
        print(sum(len(part) for part in iter(lambda: one.recv(1 << 16), b"")), one.getpeername()[0])
'''
SEND = f'''
import socket
with socket.create_connection(("10.77.0.1", 5555)) as one:
    one.sendall(bytes({SENT_BYTES}))
'''

def python(host, text, **options):
    command = host.command(sys.executable, "-c", text)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)

found = {}
with network(Path(sys.argv[1]), 3) as own:
    first, second, third = own.hosts.values()
    (first.folder / "here").write_text("of the first")
    listed = [host.command("ls") for host in own.hosts.values()]
    found["listed"] = [subprocess.run(one, capture_output=True, text=True).stdout for one in listed]
    with python(first, LISTEN) as listening:
        assert listening.stdout.readline() == "listens\\n"
        before = own.link_bytes()
        with python(second, SEND) as sending:
            sending.wait()
        found["received"] = listening.stdout.read().split()
    after = own.link_bytes()
    found["bytes"] = {link: after[link] - before[link] for link in after}
    with python(second, "import time; time.sleep(600)") as sleeping:
        second.kill()
        found["ended"] = sleeping.wait(10)
    again = own.add(2)
    found["again"] = subprocess.run(again.command("true")).returncode
    found["pids"] = [host.pid for host in own.hosts.values()]
print(json.dumps(found))
"""


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    """What the program saw."""
    try:
        subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to make namespaces")
    command = ["unshare", "--net", sys.executable, "-c", PROGRAM, str(tmp_path), str(SENT_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60.0)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_hosts_that_share_nothing(found: dict[str, Any], tmp_path: Path) -> None:
    assert found["listed"] == ["here\n", "", ""]
    assert found["received"] == [str(SENT_BYTES), "10.77.0.2"]
    counted = found["bytes"]
    assert SENT_BYTES < counted.pop("2 to 1") < 1.2 * SENT_BYTES
    assert 0 < counted.pop("1 to 2") < 0.1 * SENT_BYTES
    # The control: the links that nothing was sent over, but for what finds neighbours.
    assert set(counted) == {"1 to 3", "2 to 3", "3 to 1", "3 to 2"}
    assert all(size < 10_000 for size in counted.values())
    assert found["ended"] != 0, "what ran on the host that was killed"
    assert found["again"] == 0
    # Nothing is left of them but their folders.
    assert not [pid for pid in found["pids"] if os.path.exists(f"/proc/{pid}")]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1", "2", "3"]
