"""A process of another user that connects to a socket of this machine."""

from __future__ import annotations

import subprocess
import sys

PATIENCE = 60.0
# How ZeroMQ's own protocol begins: whoever says anything else is sent away.
_GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f"
# It becomes the user by itself: that one may not be able to read the interpreter's folder.
_CONNECT = """
import os, socket
end = socket.socket(socket.AF_UNIX)
os.setuid({user})
end.connect(chr(0) + "{name}")
end.settimeout({patience})
try:
    end.sendall({greeting})
    print(len(end.recv(1)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""


def greeting_of(address: str, user: int) -> bytes:
    """Whether a byte comes back from `ipc://@NAME` to whoever sends some: b"1" or b"0"; for root to call."""
    name = address.removeprefix("ipc://@")
    script = _CONNECT.format(user=user, name=name, patience=PATIENCE, greeting=_GREETING)
    command = [sys.executable, "-I", "-S", "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=2 * PATIENCE).stdout.strip()
