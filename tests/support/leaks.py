"""What a test may leave behind: nothing. Processes, shared memory, temporary folders, descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .processes import marked_processes

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


def _shared_memory() -> set[str]:
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


@contextmanager
def no_leaks(marker: str, temporary: Path, server: int) -> Iterator[None]:
    """Fails if anything is left that was not there before.

    Args:
        marker: of the processes that the tests started.
        temporary: where those put temporary folders.
        server: the warm server's process, which stays.
    """
    descriptors, memory = _descriptors(), _shared_memory()
    yield
    left = [p for p in marked_processes(marker) if p.pid != server]
    assert not left, f"processes are left: {[(p.pid, p.cmdline()) for p in left]}"
    assert not sorted(temporary.iterdir()), f"temporary files are left: {sorted(temporary.iterdir())}"
    # Other programs of this machine may use shared memory too; ours, and torch's, have these names.
    new = {name for name in _shared_memory() - memory if name.startswith(("shadowsync", "torch_", "psm_"))}
    assert not new, f"shared memory is left: {new}"
    now = _descriptors()
    grown = {fd: now[fd] for fd in now.keys() - descriptors.keys()}
    assert not grown, f"descriptors are left: {grown}"
