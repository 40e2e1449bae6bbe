"""A slow network by the kernel's own means: a network namespace, and queueing disciplines on its loopback.

Needs root, `ip` and `tc`, the disciplines htb and, for a delay, netem. Nothing outside the namespace changes,
and it is gone with the last process in it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ..pipeline.config.slow_network import SlowNetwork
from ..pipeline.errors import ClusterError

CLONE_NEWNET = 0x40000000
# htb needs a rate; this one limits nothing.
NO_LIMIT = "100gbit"
# As a network card's, in size: htb lets a packet pass whole, and loopback's may have 64 KiB.
LOOPBACK = "ip link set lo up mtu 1500 gso_max_segs 1"
# Packets that netem may hold: its default of 1000 would drop, which is no delay.
NETEM_PACKETS = 1_000_000


def why_not(wanted: SlowNetwork, *, delay_given: bool) -> str:
    """Why traffic control cannot be used here, or "" where it was tried and works.

    `delay_given`: a delay of 0 must be emulated by the same means as any other.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it needs Linux and root"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    commands = _commands(wanted, ["127.0.0.2"], delay_given=delay_given)
    script = " && ".join(" ".join(command) for command in commands)
    try:
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=10.0,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be tried ({type(error).__name__})"
    told = [line for line in done.stderr.splitlines() if not line.startswith("Warning")]
    return "" if done.returncode == 0 else f"the kernel refuses it ({' '.join(told) or 'no reason given'})"


def enter(wanted: SlowNetwork, addresses: Sequence[str], *, delay_given: bool) -> None:
    """Moves this process into a network namespace whose loopback is slow to and from `addresses`.

    Its later children and threads are in it too; there is no way back. Call it on the main thread, before
    any socket is made. Raises ClusterError.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise ClusterError(
            f"no network namespace can be made ({os.strerror(ctypes.get_errno())})",
            remedy='set network.emulation = "relay"',
        )
    for command in _commands(wanted, addresses, delay_given=delay_given):
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise ClusterError(
                f"`{' '.join(command)}` failed ({done.stderr.strip()})",
                remedy='set network.emulation = "relay"',
            )


def _commands(wanted: SlowNetwork, addresses: Sequence[str], *, delay_given: bool) -> list[list[str]]:
    """Two classes an address, to it and from it; what fits none passes as it would."""
    rate = NO_LIMIT if wanted.bytes_per_second is None else f"{wanted.bytes_per_second * 8:.0f}bit"
    commands = [LOOPBACK, "tc qdisc add dev lo root handle 1: htb default 0"]
    for at, address in enumerate(addresses):
        for way, direction in enumerate(("dst", "src")):
            number = 16 + 2 * at + way
            commands += [
                f"tc class add dev lo parent 1: classid 1:{number:x} htb rate {rate} quantum 60000",
                f"tc filter add dev lo parent 1: protocol ip u32 match ip {direction} {address}/32 "
                f"flowid 1:{number:x}",
            ]
            if delay_given:
                delay = f"{wanted.delay_seconds * 1e6:.0f}us"
                commands.append(
                    f"tc qdisc add dev lo parent 1:{number:x} netem delay {delay} limit {NETEM_PACKETS}"
                )
    return [command.split() for command in commands]
