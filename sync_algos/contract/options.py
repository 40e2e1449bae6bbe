"""Options of an algorithm: a job's checked settings as a frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

SECTION = "sync.options"


class AlgorithmError(ValueError):
    """An algorithm or its options cannot be used.

    `key` is the job file's key.
    """

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(f"{key}: {text}")


def require_rate(key: str, value: Any) -> None:
    """Raise ValueError unless a rate is above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= 1.0:
        raise ValueError(f"{key}: {value!r} given; give a number above 0 and at most 1")


def option_types(options: type[Any]) -> dict[str, Any]:
    """Return the type of each option.

    Raises AlgorithmError unless `options` is a usable dataclass.
    """
    what = f"the class of options {getattr(options, '__qualname__', options)!r}"
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise AlgorithmError("sync.algorithm", f"{what} is not a dataclass; write @dataclass(frozen=True)")
    if not options.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise AlgorithmError("sync.algorithm", f"{what} is not frozen; write @dataclass(frozen=True)")
    try:
        hints = get_type_hints(options)
    except (NameError, TypeError) as error:
        raise AlgorithmError("sync.algorithm", f"{what} has a type that cannot be read: {error}") from error
    types = {field.name: hints[field.name] for field in dataclasses.fields(options) if field.init}
    for name, kind in types.items():
        if not _checkable(kind):
            raise AlgorithmError(
                "sync.algorithm",
                f"{what} has {name} of type {_name(kind)}, which a job file cannot give; use bool, int, "
                "float, str, Literal, list, tuple, dict, or one of these or None",
            )
    return types


def make_options(name: str, options: type[Any], values: Mapping[str, Any]) -> Any:
    """Make the options of the algorithm `name`; raises AlgorithmError."""
    types = option_types(options)
    for key in values:
        if key not in types:
            raise AlgorithmError(f"{SECTION}.{key}", f"unknown option; {_known_here(name, key, types)}")
    checked = {key: _checked(key, value, types[key]) for key, value in values.items()}
    needed = inspect.signature(options).parameters.values()
    for parameter in needed:
        if parameter.default is parameter.empty and parameter.name not in checked:
            raise AlgorithmError(f"{SECTION}.{parameter.name}", "is missing; give it a value")
    try:
        return options(**checked)
    except (ValueError, TypeError) as error:
        key, colon, text = str(error).partition(": ")
        if colon and key in types:
            raise AlgorithmError(f"{SECTION}.{key}", text) from error
        raise AlgorithmError(SECTION, str(error)) from error


def _known_here(name: str, key: str, types: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, types, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"{name} has {', '.join(sorted(types))}" if types else f"{name} has no options"


def _checkable(kind: Any) -> bool:
    if kind in (bool, int, float, str, NoneType, Any):
        return True
    origin, inner = get_origin(kind), [part for part in get_args(kind) if part is not Ellipsis]
    if origin is Literal:
        return True
    if origin in (Union, UnionType, list, tuple, dict):
        return all(_checkable(part) for part in inner)
    return False


def _checked(key: str, value: Any, kind: Any) -> Any:
    option, fits = _fit(value, kind)
    if not fits:
        raise AlgorithmError(f"{SECTION}.{key}", f"{value!r} given; give {_name(kind)}")
    return option


def _fit(value: Any, kind: Any) -> tuple[Any, bool]:
    """Convert a value; return it and whether it fits.

    An integer fits a float; true does not fit a number.
    """
    if kind is Any:
        return value, True
    if kind is float:
        # An integer stays one, so that messages show what was given.
        return value, isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (bool, int, str, NoneType):
        return value, type(value) is kind
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value, any(type(value) is type(choice) and value == choice for choice in inner)
    if origin in (Union, UnionType):
        exact = [part for part in inner if type(value) is part]
        return next((fit for part in [*exact, *inner] if (fit := _fit(value, part))[1]), (value, False))
    return _fit_many(value, origin, inner)


def _fit_many(value: Any, origin: Any, inner: tuple[Any, ...]) -> tuple[Any, bool]:
    if origin is dict:
        if not isinstance(value, dict):
            return value, False
        fits = {key: _fit(element, inner[1]) for key, element in value.items()}
        good = all(_fit(key, inner[0])[1] for key in value) and all(good for _, good in fits.values())
        return {key: element for key, (element, _) in fits.items()}, good
    if not isinstance(value, list | tuple):
        return value, False
    kinds = inner if origin is tuple and inner[-1:] != (Ellipsis,) else (inner[0],) * len(value)
    if len(kinds) != len(value):
        return value, False
    elements = list(map(_fit, value, kinds))
    return origin(element for element, _ in elements), all(good for _, good in elements)


def _name(kind: Any) -> str:
    plain = {bool: "true or false", int: "an integer", float: "a number", str: "a text", NoneType: "nothing"}
    if isinstance(kind, type) and kind in plain:
        return plain[kind]
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_name(part) for part in get_args(kind) if part is not NoneType)
    return str(kind).replace("typing.", "")
