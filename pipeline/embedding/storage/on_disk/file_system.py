"""What kind of file system a folder is on."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")

_NETWORKS: Final = frozenset({"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3"})
_IN_MEMORY: Final = frozenset({"ramfs", "tmpfs"})


def unfit_for_rows(folder: Path, mounts: Path = MOUNTS) -> str:
    """Say why rows should not lie in a folder: it is on a network, or in memory; "" if nothing is known.

    Tests pass another place for the kernel's list of mounts.
    """
    kind = _kind_of(folder.resolve(), mounts)
    if kind in _NETWORKS or kind.startswith("fuse."):
        return f"{folder} is on a network file system ({kind}): each row that is not in memory crosses it"
    if kind in _IN_MEMORY:
        return f"{folder} is in memory ({kind}): rows there take as much of it as rows without a file"
    return ""


def _kind_of(folder: Path, mounts: Path) -> str:
    """Return the type of the innermost mount that has the folder; "" if that is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    innermost, kind = -1, ""
    for line in lines:
        # Fields of its own, a dash, then the type; spaces of a path are written as \040.
        before, _, after = line.partition(" - ")
        place = Path(before.split()[4].replace("\\040", " "))
        if folder.is_relative_to(place) and len(place.parts) >= innermost:
            innermost, kind = len(place.parts), after.split()[0]
    return kind
