"""What a test may leave behind: nothing. Processes, shared memory, temporary folders, descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from .jobs.processes import marked_processes

SHARED_MEMORY = Path("/dev/shm")


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The listing's own descriptor, closed by now.
            continue
    return found


def memory_descriptors() -> int:
    """How many descriptors this process has of memory without a name, once garbage is gone."""
    gc.collect()
    return sum(place.startswith("/memfd:shadowsync-rows") for place in _descriptors().values())


def _shared_memory(folder: Path) -> set[str]:
    """Ours, and torch's; other programs of this machine may use shared memory too."""
    names = os.listdir(folder) if folder.is_dir() else []
    return {name for name in names if name.startswith(("shadowsync", "torch_", "psm_"))}


def _of_nobody(folder: Path, names: set[str]) -> set[str]:
    """Those that no living process has: what another test has, which runs beside this one, is not left."""
    if not names:
        return names
    held: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            about = Path(f"/proc/{process.pid}")
            held.update(os.readlink(opened) for opened in (about / "fd").iterdir())
            held.update(line.rpartition(" ")[2] for line in (about / "maps").read_text().splitlines())
    # Whoever had one may have removed it meanwhile.
    return {name for name in names if str(folder / name) not in held} & _shared_memory(folder)


@contextmanager
def no_leaks(
    marker: str, temporary: Path, servers: set[int], shared_memory: Path = SHARED_MEMORY
) -> Iterator[None]:
    """Fails if anything is left that was not there before.

    Args:
        marker: of the processes that the tests started.
        temporary: where those put temporary folders.
        servers: the warm server's processes, which stay.
        shared_memory: where such memory has names.
    """
    descriptors, memory = _descriptors(), _shared_memory(shared_memory)
    yield
    left = [p for p in marked_processes(marker) if p.pid not in servers]
    assert not left, f"processes are left: {[(p.pid, *filter(None, p.cmdline())) for p in left]}"
    assert not sorted(temporary.iterdir()), f"temporary files are left: {sorted(temporary.iterdir())}"
    new = _of_nobody(shared_memory, _shared_memory(shared_memory) - memory)
    assert not new, f"shared memory is left: {new}"
    # What a cluster in this process shared is closed when it is garbage.
    gc.collect()
    now = _descriptors()
    grown = {fd: now[fd] for fd in now.keys() - descriptors.keys()}
    assert not grown, f"descriptors are left: {grown}"
