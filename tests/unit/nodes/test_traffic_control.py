"""The kernel's slow network, where there is one: measured in a namespace that a child process enters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from shadowsync.nodes import traffic_control
from shadowsync.nodes.traffic_control import why_not
from shadowsync.pipeline.config.slow_network import SlowNetwork

# Enters a namespace, echoes over an address that is slow and one that is not, and prints the seconds.
SCRIPT = """
import socket, sys, threading, time
from shadowsync.nodes.traffic_control import enter
from shadowsync.pipeline.config.slow_network import SlowNetwork

delay, rate, size = float(sys.argv[1]), float(sys.argv[2]) or None, int(sys.argv[3])
enter(SlowNetwork(delay, rate, every_link=False), ["127.0.0.2"], delay_given=delay > 0)

def echo(server):
    one, _ = server.accept()
    left = size
    while left:
        left -= len(one.recv(1 << 20))
    one.sendall(b"!")

for host in ("127.0.0.2", "127.0.0.3"):
    server = socket.create_server((host, 0))
    threading.Thread(target=echo, args=(server,), daemon=True).start()
    one = socket.create_connection(server.getsockname())
    begun = time.perf_counter()
    one.sendall(bytes(size))
    one.recv(1)
    print(time.perf_counter() - begun)
"""


def _seconds(delay: float, rate: float, size: int) -> tuple[float, float]:
    command = [sys.executable, "-c", SCRIPT, str(delay), str(rate), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    slow, fast = (float(line) for line in done.stdout.split())
    return slow, fast


def _skip_without(wanted: SlowNetwork, *, delay_given: bool) -> None:
    if problem := why_not(wanted, delay_given=delay_given):
        pytest.skip(f"no traffic control here: {problem}")


def test_the_rate_of_an_address() -> None:
    wanted = SlowNetwork(0.0, 5e6, every_link=False)
    _skip_without(wanted, delay_given=False)
    slow, fast = _seconds(0.0, 5e6, 1_000_000)
    # Its bytes have headers.
    assert 0.19 <= slow < 0.4
    assert fast < 0.1, "the control: another address"


def test_the_delay_of_an_address() -> None:
    _skip_without(SlowNetwork(0.05, None, every_link=False), delay_given=True)
    slow, fast = _seconds(0.05, 0.0, 1)
    assert 0.1 <= slow < 0.15
    assert fast < 0.05, "the control"


def test_trying_changes_nothing_here() -> None:
    before = os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""
    why_not(SlowNetwork(0.0, 5e6, every_link=False), delay_given=True)
    after = os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""
    assert before == after


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({}, "ip and tc and unshare are not installed"),
        ({"ip": "/x", "unshare": "/x"}, "tc is not installed"),
    ],
)
def test_why_it_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tools: dict[str, str], said: str) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", tools.get)
    wanted = SlowNetwork(0.05, None, every_link=False)
    assert why_not(wanted, delay_given=True) == said
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not(wanted, delay_given=True) == "it needs Linux and root"


def test_what_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        text = "Warning: quantum is big\nError: Specified qdisc kind is unknown.\n"
        return subprocess.CompletedProcess(command, 2, "", text)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/{name}")
    monkeypatch.setattr(subprocess, "run", refuse)
    found = why_not(SlowNetwork(0.05, None, every_link=False), delay_given=True)
    assert found == "the kernel refuses it (Error: Specified qdisc kind is unknown.)"


def test_every_address_is_slow_in_both_directions() -> None:
    wanted = SlowNetwork(0.05, 1e6, every_link=False)
    commands = [
        " ".join(c) for c in traffic_control._commands(wanted, ["127.0.0.2", "127.0.0.3"], delay_given=True)
    ]
    for direction in ("src", "dst"):
        for address in ("127.0.0.2", "127.0.0.3"):
            (found,) = (c for c in commands if f"match ip {direction} {address}/32" in c)
            number = found.rpartition("flowid ")[2]
            assert sum(f"classid {number} htb rate 8000000bit" in c for c in commands) == 1
            assert sum(f"parent {number} netem delay 50000us" in c for c in commands) == 1
    without = traffic_control._commands(wanted, ["127.0.0.2"], delay_given=False)
    assert not any("netem" in command for command in without), "the control"
