"""A network of namespaces on one machine, with a delay in each direction.

It works for every program that speaks IP, also where the kernel has no netem. Needs Linux, root, and ip and
nsenter of iproute2 and util-linux.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time

_CLONE = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Packets of a stream as large as they can be: each costs this process some microseconds.
MTU_BYTES = 65_000
_PREFIX = "10.77.0"
_IPV4 = 4
_MOST_PACKETS = 64


class DelayedNetwork:
    """Processes in network namespaces of their own, whose packets all arrive late.

    A thread of this process reads each packet from the TUN device of its sender, and writes it to that of
    its receiver when the delay has passed. The order is kept, and nothing is lost or limited.

    Attributes:
        delay_seconds: of each direction; it may be changed when nothing is on its way.
        packets: how many were passed on.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.packets = 0
        self._devices: dict[bytes, int] = {}
        self._poll = select.epoll()
        self._is_over = False
        self._thread = threading.Thread(target=self._pass_on, name="network", daemon=True)
        self._thread.start()

    def add(self, pid: int, number: int) -> tuple[str, str]:
        """Give a process, which has its own network namespace, an address.

        Returns the address and the name of its interface. Raises OSError or CalledProcessError without the
        right to do it.
        """
        name, address = f"late{os.getpid() % 100_000}n{number}", f"{_PREFIX}.{number + 1}"
        device = os.open(_CLONE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode("ascii"), _IFF_TUN | _IFF_NO_PI))
        inside = ["nsenter", "-t", str(pid), "-n", "ip"]
        for command in (
            ["ip", "link", "set", name, "netns", str(pid)],
            [*inside, "address", "add", f"{address}/24", "dev", name],
            [*inside, "link", "set", name, "mtu", str(MTU_BYTES), "up"],
            [*inside, "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        self._devices[bytes(int(part) for part in address.split("."))] = device
        self._poll.register(device, select.EPOLLIN)
        return address, name

    def close(self) -> None:
        """End the thread and the devices."""
        self._is_over = True
        self._thread.join()
        for device in self._devices.values():
            os.close(device)
        self._poll.close()

    def _pass_on(self) -> None:
        numbers = itertools.count()
        waiting: list[tuple[float, int, bytes]] = []
        while not self._is_over:
            pause = min(waiting[0][0] - time.monotonic(), 0.1) if waiting else 0.1
            for device, _ in self._poll.poll(max(pause, 0.0)):
                for packet in _read(device):
                    due = time.monotonic() + self.delay_seconds
                    heapq.heappush(waiting, (due, next(numbers), packet))
            while waiting and waiting[0][0] <= time.monotonic():
                self._deliver(heapq.heappop(waiting)[2])

    def _deliver(self, packet: bytes) -> None:
        receiver = self._devices.get(packet[16:20])
        if packet[0] >> 4 != _IPV4 or receiver is None:
            return
        try:
            os.write(receiver, packet)
            self.packets += 1
        except OSError:
            # The receiver's namespace has ended.
            self._devices.pop(packet[16:20], None)


def _read(device: int) -> list[bytes]:
    """Return the packets that a sender has written, up to a bound."""
    packets: list[bytes] = []
    while len(packets) < _MOST_PACKETS:
        try:
            packets.append(os.read(device, MTU_BYTES + 100))
        except OSError:
            # None is left, or its namespace has ended.
            break
    return packets
