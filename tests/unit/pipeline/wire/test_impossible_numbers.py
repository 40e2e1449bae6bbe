"""Numbers that cannot be, in every numeric field of every message: the schema alone refuses most of them."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.field_checks import Bounds, check_of
from shadowsync.pipeline.wire.messages import MESSAGES
from shadowsync.pipeline.wire.peer_messages import Version
from shadowsync.tests.support.coordinator.impossible import lies

# Of the coordinator alone, and -1 has a meaning; the other checks its numbers itself.
UNBOUNDED = (Span, FileEntry)
EXAMPLES: dict[Any, Any] = {
    str: "x", bytes: b"", bool: False, ExitCode: 0, dict[str, Any]: {}, list[Any]: [],
    BatchId: [0, 0, 0, 0], FileEntry: ["a.bin", 0, "0" * 64, "x"], int: 1, float: 1.0,
}  # fmt: skip


def example(hint: Any) -> Any:
    """A plain value of a declared type, with one item in every list."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in EXAMPLES:
        return EXAMPLES[hint]
    if origin is Annotated:
        return example(arguments[0])
    if origin is typing.Literal:
        return arguments[0]
    if origin is dict:
        return {"key": example(arguments[1])}
    if origin is tuple:
        return [example(argument) for argument in arguments if argument is not Ellipsis]
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint)).value
    return [example(one) for one in header(hint).values()]


def header(cls: type[Any]) -> dict[str, Any]:
    """The declared types of a record's fields, or of a message's header."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [one for one in dataclasses.fields(cls) if "tensor" not in one.metadata]
    return {one.name: hints[one.name] for one in fields}


# Their node checks the numbers, so that its refusal names the request: tests/unit/nodes/embedding.
OF_ROWS = ("lookup", "push", "coded_push")


def records() -> dict[str, type[Any]]:
    """Every message, request and reply that a wire carries."""
    found: dict[str, type[Any]] = {
        kind: schema.cls for kind, schema in MESSAGES.items() if kind not in OF_ROWS
    }
    for verb in CONTROL_VERBS.verbs.values():
        found |= {verb.request.__name__: verb.request, verb.reply.__name__: verb.reply}
    return found


def unbounded(hint: Any, place: str) -> Iterator[str]:
    """The places in a declared type of numbers without bounds."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (int, float):
        yield place
    elif origin is Annotated and isinstance(arguments[1], Bounds):
        return
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in UNBOUNDED:
        for name, below in header(hint).items():
            yield from unbounded(below, f"{place}.{name}")
    elif hint != int | float:
        for argument in arguments:
            yield from unbounded(argument, place)


@pytest.mark.parametrize("name", records())
def test_every_number_of_a_message_has_bounds(name: str) -> None:
    assert not list(unbounded(records()[name], name))


@pytest.mark.parametrize("name", records())
def test_a_number_that_cannot_be_is_refused_by_the_name_of_its_field(name: str) -> None:
    cls = records()[name]
    hints = header(cls)
    body = [example(hint) for hint in hints.values()]
    checks = [(field, check_of(hint)) for field, hint in hints.items()]
    for (_, check), value in zip(checks, body, strict=True):
        check(value)
    for place, wrong in lies(body):
        number = float(place.rpartition(" = ")[2]) if " = " in place else None
        try:
            for (_, check), value in zip(checks, wrong, strict=True):
                check(value)
        except ValueError:
            continue
        assert number is None or math.isfinite(number), f"{name}{place} was taken"
        below_zero = number is not None and number < 0
        has_meaning = list(hints.values())[int(place[1:].partition("]")[0])] == Version
        assert not below_zero or has_meaning or _within(cls) & set(UNBOUNDED), f"{name}{place} was taken"


def _within(cls: type[Any]) -> set[Any]:
    """The records below a record."""
    found: set[Any] = set()
    waiting = list(header(cls).values())
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found.add(hint)
            waiting += header(hint).values()
    return found
