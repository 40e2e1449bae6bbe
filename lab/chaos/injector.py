"""Injection of faults into the processes and links of a running job."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil

from ...nodes.runtime.process import CLI, runs
from ...pipeline.atomic_file import atomic_file
from ...pipeline.text.wall_clock import clock_fault_file
from ..network.link_faults import LINK_FAULTS, LinkFault, request_link_fault
from .schedule import ScheduledFault

# Whether the limits of a living process can be set, as on Linux.
HAS_LIMITS: Final = hasattr(psutil.Process, "rlimit")


class Injector:
    """Begins faults in one job, and ends those that last.

    Args:
        supervisor: process id of its supervisor.
        control: endpoint at which the job's relay takes faults of links.
        nodes: number of nodes by role.
        clocks: folder of the shifted clocks (see `wall_clock`), which exists.
    """

    def __init__(self, supervisor: int, control: str, nodes: Mapping[str, int], clocks: Path) -> None:
        self._supervisor, self._control, self._nodes = supervisor, control, nodes
        self._clocks = clocks
        self._lasting: list[tuple[float, Callable[[], None]]] = []

    @property
    def active(self) -> bool:
        """Whether a fault lasts."""
        return bool(self._lasting)

    def inject(self, fault: ScheduledFault, now: float) -> bool:
        """Inject a fault; return whether it met a living process or an open connection."""
        if fault.kind in LINK_FAULTS:
            return self._inject_into_links(fault, now)
        processes = processes_of_role(self._supervisor, fault.role)
        if not processes:
            return False
        victim = processes[fault.place % len(processes)]
        try:
            undo = self._inject_into_process(fault, victim)
        except psutil.NoSuchProcess:
            return False
        if undo is not None:
            self._lasting.append((now + fault.seconds, undo))
        return True

    def end(self, now: float) -> None:
        """End the faults whose time has come."""
        for until, undo in tuple(self._lasting):
            if now < until:
                continue
            self._lasting.remove((until, undo))
            with contextlib.suppress(psutil.NoSuchProcess):
                undo()

    def _inject_into_links(self, fault: ScheduledFault, now: float) -> bool:
        node = f"{fault.role}-{fault.place % self._nodes[fault.role]}"
        try:
            ends = request_link_fault(self._control, LinkFault(node, fault.kind, fault.seconds))
        except OSError:
            return False
        # The relay ends it by itself.
        self._lasting.append((now + fault.seconds, lambda: None))
        return ends > 0

    def _inject_into_process(
        self, fault: ScheduledFault, victim: psutil.Process
    ) -> Callable[[], None] | None:
        """Begin a fault; return what ends it, None if nothing does."""
        if fault.kind == "kill":
            victim.send_signal(signal.SIGKILL)
            return None
        if fault.kind == "stop":
            victim.send_signal(signal.SIGSTOP)
            return lambda: victim.send_signal(signal.SIGCONT)
        if fault.kind == "clock":
            return self._shift_clock(victim, fault.jump_seconds)
        # As on a full disk, a write to a file fails; pipes and sockets are no files.
        soft, hard = victim.rlimit(resource.RLIMIT_FSIZE)
        _limit_files(victim, (0, hard))
        return lambda: _limit_files(victim, (soft, hard))

    def _shift_clock(self, victim: psutil.Process, seconds: float) -> Callable[[], None]:
        """Shift the wall clock of a process and its children; return what ends it."""
        processes = (victim, *victim.children(recursive=True))
        files = [clock_fault_file(self._clocks, process.pid) for process in processes]
        for file in files:
            with atomic_file(file) as written:
                written.write(str(seconds).encode("ascii"))

        def set_right() -> None:
            for file in files:
                file.unlink(missing_ok=True)

        return set_right


def _limit_files(victim: psutil.Process, limits: tuple[int, int]) -> None:
    """Limit the files of a process and of its children, those of now."""
    for process in (victim, *victim.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_FSIZE, limits)


def processes_of_role(supervisor: int, role: str) -> list[psutil.Process]:
    """Return the living processes of a role, by process id."""
    processes = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(supervisor).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if runs(child.cmdline(), CLI, role):
                    processes.append(child)
    return sorted(processes, key=lambda child: child.pid)
