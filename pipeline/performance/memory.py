"""The memory that this process may use, within its control groups' limits.

A container's memory limit is that of a control group. The kernel kills a process that exceeds the limit, but
psutil reads the figures of the machine, which do not include it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_MOUNT: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class GroupLimit:
    """A control group's memory limit and use.

    `used_bytes` excludes the inactive file cache, which the kernel can drop.
    """

    limit_bytes: int
    used_bytes: int


def available_memory_bytes(own_groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> int:
    """Return the bytes of memory that are available now.

    This is the least of the machine's and of all control groups' that contain this process. Any thread may
    call this. Tests pass other places for the kernel's files as arguments.
    """
    free = [limit.limit_bytes - limit.used_bytes for limit in group_limits(own_groups, mount)]
    return max(0, min([int(psutil.virtual_memory().available), *free]))


def total_memory_bytes(own_groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> int:
    """Return the machine's memory in bytes, or a control group's lower limit."""
    limits = [limit.limit_bytes for limit in group_limits(own_groups, mount)]
    return min([int(psutil.virtual_memory().total), *limits])


def group_limits(own_groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> list[GroupLimit]:
    """Return the limits on this process, of cgroup v2 and v1; empty outside Linux."""
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        # hierarchy:controllers:path; in cgroup v2 the controllers are empty.
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += [_limit_v2(folder) for folder in _upward(mount, path)]
        elif "memory" in controllers.split(","):
            limits += [_limit_v1(folder) for folder in _upward(mount / "memory", path)]
    return [limit for limit in limits if limit is not None]


def _upward(root: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and of the groups above it.

    A container sees its own group at the root, but its path may exist only on the host. So the caller must
    skip folders that do not exist.
    """
    group = PurePosixPath(path.lstrip("/"))
    for folder in (group, *group.parents):
        if ".." not in folder.parts:
            yield root / folder


def _limit_v2(folder: Path) -> GroupLimit | None:
    return _limit(folder, "memory.max", "memory.current", "inactive_file")


def _limit_v1(folder: Path) -> GroupLimit | None:
    return _limit(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limit(folder: Path, limit: str, usage: str, cache: str) -> GroupLimit | None:
    """Return the group's limit; None if it has none or it cannot be read."""
    try:
        limit_bytes = int((folder / limit).read_text(encoding="ascii"))
        used_bytes = int((folder / usage).read_text(encoding="ascii"))
        statistics = (folder / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    for line in statistics.splitlines():
        name, _, value = line.partition(" ")
        if name == cache:
            used_bytes = max(0, used_bytes - int(value))
    return GroupLimit(limit_bytes, used_bytes)
