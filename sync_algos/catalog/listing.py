"""The list of algorithms that `shadowsync algos` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from ..base import Algorithm, ModelOrigin
from ..contract.options import AlgorithmError, option_types
from .names import entry_points
from .registry import ALGORITHMS, all_algorithms

WIDTH = 18
MODELS = {
    ModelOrigin.CENTER: "center",
    ModelOrigin.MEAN: "mean of the replicas",
    ModelOrigin.GLOBAL: "global model, the same on every trainer",
    ModelOrigin.REPLICAS: "replicas, each by itself",
}


def list_algorithms() -> Iterator[str]:
    """Yield the lines to print; for an unusable algorithm, the reason."""
    installed = entry_points()
    for name, algorithm in all_algorithms().items():
        if isinstance(algorithm, AlgorithmError):
            yield f"{name:{WIDTH}} cannot be used: {str(algorithm).partition(': ')[2]}"
            continue
        yield f"{name:{WIDTH}} {algorithm.summary}"
        lines = _lines(algorithm)
        if name not in ALGORITHMS:
            lines = [f"from the package {installed[name][0]}", *lines]
        yield from (f"{'':{WIDTH}} {line}" for line in lines)


def _lines(cls: type[Algorithm]) -> list[str]:
    needs = "sync nodes" if cls.needs_center else "no sync node"
    if cls.needs_peers:
        needs += ", and trainers that exchange data" if cls.needs_center else ", only the other trainers"
    lines = [f"needs {needs}; resulting model: {MODELS[cls.model]}"]
    types = option_types(cls.Options)
    for field in dataclasses.fields(cls.Options):
        if field.name in types:
            lines.append(f"sync.options.{field.name} = {_default(field)}{_choices(types[field.name])}")
    return lines


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return _toml(field.default_factory())
    return "(must be given)" if field.default is dataclasses.MISSING else _toml(field.default)


def _toml(value: Any) -> str:
    """Format a value as in a job file."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _choices(kind: Any) -> str:
    if get_origin(kind) is not Literal:
        return ""
    return f"   ({' or '.join(map(_toml, get_args(kind)))})"
