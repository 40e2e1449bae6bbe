"""Checks of values that came over the wire.

A check is derived from the declared type of a field. It turns a value that msgpack decoded into the field's
value, and raises ValueError for a wrong one. Declarations bound numbers and sizes:
`Annotated[int, Bounds(0)]`, `Annotated[tuple[int, ...], Items(4096)]`.

Written by hand: records travel as lists of values by position, and pydantic reads dataclasses by name only.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from ..types import BatchId

MAX_TEXT_CHARACTERS: Final = 65_536
MAX_INTEGER: Final = 2**63 - 1
# Sums of as many counts as a job has nodes stay integers of 64 bits.
MOST_COUNT: Final = 2**53
MAX_ITEMS: Final = 4096
MAX_KEYS: Final = 4096
# For tables without a declared form: a plan of all tables, or a status with its curves.
MAX_TABLE_VALUES: Final = 1 << 18
MAX_DEPTH: Final = 16
MAX_FIELDS: Final = 64

Check = Callable[[Any], Any]
# A cache of `fields_of`, by record.
_FIELDS: Final[dict[type[Any], tuple[tuple[str, Check], ...]]] = {}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of an integer or a finite number, both included."""

    least: float
    most: float = MAX_INTEGER


@dataclasses.dataclass(frozen=True)
class Items:
    """The greatest length of a value: items of a list, or characters, or bytes."""

    most: int


Count = Annotated[int, Bounds(0)]
# Sums over many messages of these stay integers of 64 bits, and finite.
MOST_EXAMPLES: Final = 1 << 44
Examples = Annotated[int, Bounds(0, MOST_EXAMPLES)]
MOST_SECONDS: Final = 1e12
Seconds = Annotated[float, Bounds(0.0, MOST_SECONDS)]
Size = Annotated[float, Bounds(0.0, math.inf)]
Real = Annotated[float, Bounds(-math.inf, math.inf)]
Counts: TypeAlias = dict[str, int | float]
"""A node's measurements so far by name, numbers from 0 to `MOST_COUNT`."""


def check_of(hint: Any) -> Check:
    """Return the check of a declared type.

    Raises TypeError for a type that cannot be sent.
    """
    plain = _PLAIN.get(hint) if not typing.get_origin(hint) else None
    if plain is not None:
        return plain
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_member, hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(record_of, hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1])
    if origin is typing.Literal:
        return functools.partial(_choice, arguments)
    if hint == dict[str, Any]:
        return _table
    if hint == list[Any]:
        return _list
    if origin is dict and arguments[0] is str:
        return functools.partial(_mapping, check_of(arguments[1]))
    if origin is tuple and arguments[-1] is Ellipsis:
        return functools.partial(_items, check_of(arguments[0]), MAX_ITEMS)
    if origin is tuple:
        return functools.partial(_fixed, tuple(map(check_of, arguments)))
    if origin in (typing.Union, types.UnionType) and types.NoneType in arguments:
        inner = check_of(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if hint == int | float:
        return _count
    raise TypeError(f"a message field cannot be of type {hint!r}")


def _bounded(hint: Any, bound: Bounds | Items) -> Check:
    if isinstance(bound, Bounds):
        return functools.partial(_within, check_of(hint), bound)
    if typing.get_origin(hint) is tuple:
        return functools.partial(_items, check_of(typing.get_args(hint)[0]), bound.most)
    return functools.partial(_short, check_of(hint), bound.most)


def fields_of(cls: type[Any]) -> tuple[tuple[str, Check], ...]:
    """Return the fields of a record, in order, with their checks."""
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple((f.name, check_of(hints[f.name])) for f in dataclasses.fields(cls))
    return _FIELDS[cls]


def record_of(cls: type[Any], values: Any) -> Any:
    """Build a record from a list of its fields' values, in order.

    Raises ValueError, which names the field, for a wrong value.
    """
    fields = fields_of(cls)
    if type(values) is not list or len(values) != len(fields):
        names = ", ".join(name for name, _ in fields)
        raise ValueError(f"a list of {len(fields)} values ({names}) is expected, not {values!r:.80}")
    return cls(
        **{name: check_at(name, check, value) for (name, check), value in zip(fields, values, strict=True)}
    )


def values_of(record: Any) -> list[Any]:
    """Return a record's fields as plain values, in order; the opposite of `record_of`."""
    return [_plain(getattr(record, field.name)) for field in dataclasses.fields(record)]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    return values_of(value) if dataclasses.is_dataclass(value) else value


def check_at(place: str, check: Check, value: Any) -> Any:
    """Return the checked value of a field; raises a ValueError that begins with `place`."""
    try:
        return check(value)
    except ValueError as error:
        below = str(error)
        separator = "" if below.startswith("[") else "." if isinstance(error, _Below) else ": "
        raise _Below(f"{place}{separator}{below}") from error


class _Below(ValueError):
    """An error whose text begins with a place in the record."""


def _items(check: Check, most: int, value: Any) -> tuple[Any, ...]:
    if type(value) is not list or len(value) > most:
        raise ValueError(f"a list of at most {most} items is expected, not {_shown(value)}")
    return tuple(check_at(f"[{number}]", check, item) for number, item in enumerate(value))


def _fixed(checks: tuple[Check, ...], value: Any) -> tuple[Any, ...]:
    if type(value) is not list or len(value) != len(checks):
        raise ValueError(f"a list of {len(checks)} items is expected, not {_shown(value)}")
    try:
        return tuple([check(item) for check, item in zip(checks, value, strict=True)])
    except ValueError:
        # Names of places are made for a wrong value only: they cost more than the checks.
        pairs = zip(checks, value, strict=True)
        return tuple(check_at(f"[{number}]", check, item) for number, (check, item) in enumerate(pairs))


def _mapping(check: Check, value: Any) -> dict[str, Any]:
    if type(value) is not dict or len(value) > MAX_KEYS or not all(type(key) is str for key in value):
        raise ValueError(f"a table of at most {MAX_KEYS} text keys is expected, not {_shown(value)}")
    return {key: check_at(f"[{key!r:.80}]", check, item) for key, item in value.items()}


def _within(check: Check, bound: Bounds, value: Any) -> Any:
    checked = check(value)
    if not math.isfinite(checked) or not bound.least <= checked <= bound.most:
        raise ValueError(f"a finite number from {bound.least:g} to {bound.most:g} is expected, not {value!r}")
    return checked


def _short(check: Check, most: int, value: Any) -> Any:
    checked = check(value)
    if len(checked) > most:
        raise ValueError(f"at most {most} are expected, not {len(checked)}")
    return checked


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if type(value) is not type(choices[0]) or value not in choices:
        raise ValueError(f"one of {', '.join(map(repr, choices))} is expected, not {_shown(value)}")
    return value


def _member(cls: type[enum.Enum], value: Any) -> enum.Enum:
    known = [member.value for member in cls]
    return cls(_choice(tuple(known), value))


def _integer(value: Any) -> int:
    if type(value) is not int or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError(f"an integer is expected, not {_shown(value)}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"a number is expected, not {_shown(value)}")
    return float(value)


def _count(value: Any) -> int | float:
    """Check that a number can be one of `Counts`; an integer stays an integer."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"a finite number is expected, not {_shown(value)}")
    number: int | float = value
    if not 0 <= number <= MOST_COUNT:
        raise ValueError(f"a finite number from 0 to {MOST_COUNT} is expected, not {_shown(value)}")
    return number


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"true or false is expected, not {_shown(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(
            f"a text of at most {MAX_TEXT_CHARACTERS} characters is expected, not {_shown(value)}"
        )
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"bytes are expected, not {_shown(value)}")
    return value


def _table(value: Any) -> dict[str, Any]:
    """Check the size and depth of a table, and that its values are plain.

    The receiver parses the table further.
    """
    if type(value) is not dict:
        raise ValueError(f"a table with text keys is expected, not {_shown(value)}")
    values, level = 0, [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            values += len(container)
            below += _values_in(container)
        if values > MAX_TABLE_VALUES:
            raise ValueError(f"at most {MAX_TABLE_VALUES} values are expected in a table")
        level = [item for item in below if type(item) in (dict, list)]
        if not level:
            return value
    raise ValueError(f"a table of at most {MAX_DEPTH} levels is expected")


def _values_in(container: dict[Any, Any] | list[Any]) -> list[Any]:
    """Return the values of one table or list in a table."""
    if isinstance(container, list):
        items = container
    elif len(container) <= MAX_KEYS and all(type(key) is str for key in container):
        items = list(container.values())
    else:
        raise ValueError(f"a table of at most {MAX_KEYS} text keys is expected, not {_shown(container)}")
    for item in items:
        if type(item) not in (dict, list, str, int, float, bool, bytes, types.NoneType):
            raise ValueError(f"a plain value is expected, not {_shown(item)}")
    return items


def _list(value: Any) -> list[Any]:
    """Check the list of a request's or reply's fields.

    The fields themselves are checked once the verb is known.
    """
    if type(value) is not list or len(value) > MAX_FIELDS:
        raise ValueError(f"a list of at most {MAX_FIELDS} fields is expected, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return f"{value!r:.80}"


_PLAIN: Final[dict[Any, Check]] = {
    BatchId: BatchId.from_wire, int: _integer, float: _number, bool: _flag, str: _text, bytes: _binary,
}  # fmt: skip
