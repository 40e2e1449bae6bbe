"""The names of the algorithms, and making one from a job's settings."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from .base import Algorithm
from .easgd import EASGD
from .easgd_symmetric import SymmetricEASGD
from .none import NoSync

ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in (EASGD, SymmetricEASGD, NoSync)}


class AlgorithmError(ValueError):
    """An unknown algorithm, or options that it cannot use. `key` is the job file's key."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(f"{key}: {text}")


def find_algorithm(name: str) -> type[Algorithm]:
    """The class called `name`; raises AlgorithmError naming what there is."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        close = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(ALGORITHMS))}"
        raise AlgorithmError("sync.algorithm", f"{name!r} given; {hint}") from None


def make_algorithm(name: str, options: Mapping[str, Any]) -> Algorithm:
    """An instance with its options checked; raises AlgorithmError for the first that cannot be used."""
    cls = find_algorithm(name)
    known = {field.name for field in dataclasses.fields(cls.Options)}
    for key in options:
        if key not in known:
            there = f"{name} has: {', '.join(sorted(known))}" if known else f"{name} has no options"
            raise AlgorithmError(f"sync.options.{key}", f"unknown option; {there}")
    try:
        return cls(cls.Options(**options))
    except (ValueError, TypeError) as error:
        key, colon, text = str(error).partition(": ")
        if colon and key in known:
            raise AlgorithmError(f"sync.options.{key}", text) from error
        raise AlgorithmError("sync.options", str(error)) from error
