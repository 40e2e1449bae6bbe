"""Hosts on one machine, with addresses, names, processes and folders of their own.

A host is a set of Linux namespaces that lives as long as its first process, and that ends with this program.
Each two hosts have a link of their own, whose counters say how many bytes passed it. Nothing is made in the
namespaces of the machine, if this program has a network of its own:

    unshare --net python PROGRAM

Needs root, and ip, nsenter and unshare of iproute2 and util-linux.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

_NETWORK: Final = "10.77.0"
_OUTSIDE: Final = 100
# Its own folder takes the place of that of all hosts, so that it cannot see those of the others.
_BEGIN: Final = """
mount --bind "$1" "$2" && ip link set lo up && hostname "$3" && echo up && exec cat >/dev/null
"""


class Host:
    """A host that was started.

    Attributes:
        number: the last part of its address.
        address: at which the other hosts reach it.
        folder: where this program finds the host's files; its processes find them at `Network.place`.
    """

    def __init__(self, number: int, folder: Path, place: Path) -> None:
        self.number, self.folder, self._place = number, folder, place
        self.address = f"{_NETWORK}.{number}"
        folder.mkdir(exist_ok=True)
        own = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        begin = ["sh", "-c", _BEGIN, "host", str(folder), str(place), f"host{number}"]
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(
            ["unshare", *own, *begin], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        assert self._holder.stdout is not None
        if (line := self._holder.stdout.readline()) != "up\n":
            raise RuntimeError(f"namespaces cannot be made here: {line.strip()}")
        (self._first,) = psutil.Process(self._holder.pid).children()

    @property
    def pid(self) -> int:
        """Its first process."""
        return int(self._first.pid)

    def command(self, *command: str) -> list[str]:
        """Return what runs a command there, in the host's own folder."""
        into = ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid"]
        return [*into, f"--wdns={self._place}", *command]

    def kill(self) -> None:
        """Kill its first process.

        The kernel ends all others, and the links, with it.
        """
        if self._holder.poll() is None:
            self._first.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()


class Network:
    """Hosts in a folder, and a link between each two of them.

    Attributes:
        place: the path of every host's own folder.
        hosts: by number, from 1 on.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.hosts: dict[int, Host] = {}

    def add(self, number: int) -> Host:
        """Start a host, or another one in the place of a dead one.

        It has the files of that.
        """
        host = Host(number, self.place / str(number), self.place)
        self.hosts[number] = host
        for other in self.hosts.values():
            if other is not host:
                self._link(host, other)
        return host

    def join(self, host: Host) -> None:
        """Link this program's own network, which must be empty, to a host."""
        if {name for name in psutil.net_if_addrs() if name != "lo"}:
            raise SystemExit("start it in a network of its own: unshare --net python PROGRAM")
        _ip([], "link", "set", "lo", "up")
        _ip([], "link", "add", "outside", "type", "veth", "peer", "outside", "netns", str(host.pid))
        outside = f"{_NETWORK}.{_OUTSIDE}"
        _address([], "outside", outside, host.address)
        _address(_inside(host), "outside", host.address, outside)

    def link_bytes(self) -> dict[str, int]:
        """Return the bytes that have passed each link, headers included, by `FROM to TO`."""
        found = {}
        for one in self.hosts.values():
            listed = subprocess.run(
                [*_inside(one), "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
            )
            for line in listed.stdout.splitlines():
                name, _, counts = line.strip().partition(":")
                if name.startswith("to"):
                    # The ninth is the first of those that were sent.
                    found[f"{one.number} to {name.removeprefix('to')}"] = int(counts.split()[8])
        return found

    def close(self) -> None:
        """End all hosts."""
        for host in self.hosts.values():
            host.kill()

    def _link(self, one: Host, other: Host) -> None:
        there, here = f"to{one.number}", f"to{other.number}"
        # Of a host that was killed: the kernel takes its time to remove it.
        old = [*_inside(other), "ip", "link", "delete", there]
        subprocess.run(old, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        _ip(_inside(one), "link", "add", here, "type", "veth", "peer", there, "netns", str(other.pid))
        _address(_inside(one), here, one.address, other.address)
        _address(_inside(other), there, other.address, one.address)


@contextmanager
def network(place: Path, count: int) -> Iterator[Network]:
    """Yield a network of so many hosts, whose folders are in `place`.

    Only the folders are left afterwards.
    """
    own = Network(place)
    try:
        for number in range(1, count + 1):
            own.add(number)
        yield own
    finally:
        own.close()


def _inside(host: Host) -> list[str]:
    return ["nsenter", "--target", str(host.pid), "--net"]


def _address(inside: Sequence[str], interface: str, address: str, peer: str) -> None:
    _ip(inside, "address", "add", address, "peer", peer, "dev", interface)
    _ip(inside, "link", "set", interface, "up")


def _ip(inside: Sequence[str], *command: str) -> None:
    subprocess.run([*inside, "ip", *command], check=True, stdin=subprocess.DEVNULL)
