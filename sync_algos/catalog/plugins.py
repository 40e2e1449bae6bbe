"""Plug-in algorithms: from installed packages, modules and files."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from ...class_loader import NoSuchFile, load_module
from ..base import Algorithm
from ..contract.options import AlgorithmError, option_types
from .names import KEY, Entry


def load_entry_point(name: str, entry: Entry) -> type[Algorithm]:
    """Load the class of an entry point.

    Raises AlgorithmError, which names the package.
    """
    try:
        cls = check_class(entry.value, load_class(entry.value))
    except AlgorithmError as error:
        why = str(error).partition(": ")[2]
        raise AlgorithmError(
            error.key, f"{name!r} of the installed package {entry.package}: {why}"
        ) from error
    if cls.name != name:
        raise AlgorithmError(
            KEY,
            f"{name!r} of the installed package {entry.package} has name = {cls.name!r}; make them equal",
        )
    return cls


def load_class(name: str) -> Any:
    """Load "package.module:Class" or "file.py:Class"; raises AlgorithmError."""
    where, _, class_name = name.rpartition(":")
    if not where or not class_name:
        raise AlgorithmError(KEY, f"{name!r} given; write package.module:Class or ./file.py:Class")
    module = _load(name, where)
    try:
        return getattr(module, class_name)
    except AttributeError:
        names = ", ".join(_algorithms_in(module)) or "none"
        raise AlgorithmError(
            KEY, f"{name!r} cannot be loaded: {where} has no {class_name}; its algorithms: {names}"
        ) from None


def check_class(name: str, cls: Any) -> type[Algorithm]:
    """Return `cls` if it is a usable algorithm; else raise AlgorithmError."""
    if not (inspect.isclass(cls) and issubclass(cls, Algorithm)):
        what = "a class" if inspect.isclass(cls) else f"a {type(cls).__name__}"
        raise AlgorithmError(
            KEY, f"{name!r} is {what}; make it a subclass of shadowsync.sync_algos.base.Algorithm"
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise AlgorithmError(KEY, f"{name!r} is abstract; write its {missing}")
    for attribute in ("name", "summary"):
        value = getattr(cls, attribute, None)
        if not isinstance(value, str) or not value or "\n" in value:
            raise AlgorithmError(KEY, f"{name!r} has no {attribute}; give it one line of text")
    # Raises for options that a job file cannot give.
    option_types(cls.Options)
    return cls


def _load(name: str, where: str) -> ModuleType:
    try:
        return load_module(where)
    except NoSuchFile as error:
        raise AlgorithmError(KEY, f"{name!r} cannot be loaded: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise AlgorithmError(
                KEY,
                f"{name!r} cannot be loaded: there is no module {error.name}; install its package, or set "
                "PYTHONPATH to its folder",
            ) from error
        raise AlgorithmError(KEY, _import_failed(name, error)) from error
    except Exception as error:
        raise AlgorithmError(KEY, _import_failed(name, error)) from error


def _import_failed(name: str, error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{name!r} cannot be imported ({type(error).__name__}: {text})"


def _algorithms_in(module: ModuleType) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Algorithm) and not inspect.isabstract(value)
    )
