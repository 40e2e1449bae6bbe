"""Names of algorithms, built in and installed, without importing torch."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from ..contract.options import AlgorithmError

GROUP = "shadowsync.sync_algos"
KEY = "sync.algorithm"

NEEDS_CENTER = {
    "bmuf": False,
    "decoupled": True,
    "ds_sync": False,
    "easgd": True,
    "gaia": False,
    "ma": False,
    "none": False,
    "tree": False,
}


def _example(file: str, cls: str) -> str:
    return (
        f"is an example now; copy examples/algorithms/{file} of shadowsync's repository beside the job file,"
        f" and give './{file}:{cls}'"
    )


MOVED: Final = {
    "diloco": _example("diloco.py", "DiLoCo"),
    "downpour": _example("downpour.py", "Downpour"),
    "easgd_symmetric": _example("easgd_symmetric.py", "SymmetricEASGD"),
    "gossip": "is 'ds_sync' with groups of 2, the default; give that",
}
"""What is said of names that were built in."""


@dataclass(frozen=True)
class Entry:
    """The class that an installed package offers under a name."""

    value: str
    package: str

    def __str__(self) -> str:
        return f"{self.package} ({self.value})"


def entry_points() -> Mapping[str, Sequence[Entry]]:
    """Return the entry points of installed packages, by name.

    Imports none of them.
    """
    return _entry_points(tuple((path, _changed(path)) for path in sys.path))


def _changed(path: str) -> int:
    """Return when the folder of packages was changed last, in nanoseconds; 0 if there is none."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


# They are asked for with each check of a job, and reading them takes milliseconds.
@functools.lru_cache(maxsize=1)
def _entry_points(_: tuple[tuple[str, int], ...]) -> Mapping[str, Sequence[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "a package"
        entry = Entry(point.value, package)
        if entry not in entries.setdefault(point.name, []):
            entries[point.name].append(entry)
    return entries


def require_known(name: str) -> None:
    """Check that a name is that of one algorithm.

    A class given outright is not looked at. Raises AlgorithmError, with the names that exist.
    """
    if ":" in name:
        return
    installed = entry_points()
    makers = [*(["shadowsync itself"] if name in NEEDS_CENTER else []), *map(str, installed.get(name, []))]
    if len(makers) > 1:
        taken = f"{name!r} is the name of several algorithms, of {' and '.join(makers)}; remove a package"
        raise AlgorithmError(KEY, taken)
    if not makers and name in MOVED:
        raise AlgorithmError(KEY, f"{name!r} {MOVED[name]}")
    if not makers:
        names = {*NEEDS_CENTER, *installed}
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"give one of {', '.join(sorted(names))}"
        raise AlgorithmError(KEY, f"{name!r} is not an algorithm; {hint}")
