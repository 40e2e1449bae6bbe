"""Links of limited bandwidth between network namespaces.

They need root, `ip` and `tc` with tbf.
"""

from __future__ import annotations

import os
import subprocess
from types import TracebackType
from typing import Self


class LimitedLinks:
    """One near side, and `count` far sides.

    Each far side is behind a link of its own; both directions are limited. Use as a context manager; the
    namespaces go with it.
    """

    def __init__(self, count: int, rate_mbit: int) -> None:
        self._count = count
        self._rate_mbit = rate_mbit
        self._prefix = f"shadowsync-{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            near = self._namespace("near")
            for i in range(self._count):
                far = self._namespace(f"far{i}")
                _run(f"ip -n {near} link add to{i} type veth peer name uplink netns {far}")
                for namespace, device, address in ((near, f"to{i}", 1), (far, "uplink", 2)):
                    _run(f"ip -n {namespace} addr add 10.77.{i}.{address}/24 dev {device}")
                    _run(f"ip -n {namespace} link set {device} up")
                    # A queue of about a fifth of a second, as a router would have.
                    queue = int(self._rate_mbit * 1e6 / 8 / 5)
                    _run(
                        f"ip netns exec {namespace} tc qdisc add dev {device} root tbf "
                        f"rate {self._rate_mbit}mbit burst 64kb limit {queue}"
                    )
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, far: int) -> str:
        """The IP address of a far side."""
        return f"10.77.{far}.2"

    def on_far_side(self, far: int, command: list[str]) -> list[str]:
        """A command that runs another on a far side."""
        return ["ip", "netns", "exec", f"{self._prefix}-far{far}", *command]

    def on_near_side(self, command: list[str]) -> list[str]:
        """A command that runs another on the near side."""
        return ["ip", "netns", "exec", f"{self._prefix}-near", *command]

    def _namespace(self, name: str) -> str:
        whole = f"{self._prefix}-{name}"
        _run(f"ip netns add {whole}")
        self._made.append(whole)
        _run(f"ip -n {whole} link set lo up")
        return whole

    def _remove(self) -> None:
        for name in reversed(self._made):
            _run(f"ip netns delete {name}")
        self._made.clear()


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
