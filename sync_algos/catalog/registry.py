"""Algorithms by name, and making one from a job's settings.

A name is one of three: a name in the table below; an entry point of an installed package (see `names`); or
a class given outright, "package.module:Class" or "/folder/my_algo.py:Class".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import Algorithm
from ..bmuf import BMUF
from ..contract.options import AlgorithmError, make_options
from ..decoupled import Decoupled
from ..ds_sync import DSSync
from ..easgd import EASGD
from ..gaia import Gaia
from ..ma import MA
from ..none import NoSync
from ..tree import Tree
from .names import entry_points, require_known
from .plugins import check_class, load_class, load_entry_point

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.name: cls
    for cls in (
        EASGD,
        Decoupled,
        MA,
        BMUF,
        Gaia,
        DSSync,
        Tree,
        NoSync,
    )
}

__all__ = ["ALGORITHMS", "AlgorithmError", "all_algorithms", "find_algorithm", "make_algorithm"]


def find_algorithm(name: str) -> type[Algorithm]:
    """Find the class of `name`.

    Raises AlgorithmError, with the names that exist.
    """
    if ":" in name:
        return check_class(name, load_class(name))
    require_known(name)
    return ALGORITHMS[name] if name in ALGORITHMS else load_entry_point(name, entry_points()[name][0])


def all_algorithms() -> dict[str, type[Algorithm] | AlgorithmError]:
    """Return all built-in and installed algorithms by name.

    An unusable one is represented by its error.
    """
    algorithms: dict[str, type[Algorithm] | AlgorithmError] = {}
    for name in sorted({*ALGORITHMS, *entry_points()}):
        try:
            algorithms[name] = find_algorithm(name)
        except AlgorithmError as error:
            algorithms[name] = error
    return algorithms


def make_algorithm(name: str, options: Mapping[str, Any]) -> Algorithm:
    """Make an instance with checked options; raises AlgorithmError."""
    cls = find_algorithm(name)
    checked = make_options(name, cls.Options, options)
    try:
        return cls(checked)
    except Exception as error:
        raise AlgorithmError(
            "sync.algorithm", f"{name} cannot be made ({type(error).__name__}: {error})"
        ) from error
