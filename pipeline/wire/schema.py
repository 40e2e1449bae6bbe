"""Schemas of messages, derived from their classes: header fields with types, tensors with dtype and rank."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..types import BatchId

MAX_TEXT_CHARACTERS = 65_536
MAX_INTEGER = 2**63 - 1
MAX_NUMBERS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class TensorField:
    """One raw frame of a message: `dtype` little-endian, `rank` dimensions."""

    name: str
    dtype: np.dtype[Any]
    rank: int


def tensor(dtype: str, rank: int, *, optional: bool = False) -> Any:
    """Declare a dataclass field that is sent as a raw frame.

    `dtype` is a numpy name, little-endian on the wire. With `optional` the default is an empty tensor.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    metadata = {"tensor": (kind, rank)}
    if not optional:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=lambda: np.zeros((0,) * rank, kind))


class Message:
    """Base of all messages: frozen dataclasses whose `KIND` names them on the wire."""

    KIND: ClassVar[str]


@dataclasses.dataclass(frozen=True, slots=True)
class MessageSchema:
    """What `frames` needs to encode and to validate one kind of message."""

    cls: type[Message]
    header: tuple[tuple[str, Callable[[Any], Any]], ...]
    tensors: tuple[TensorField, ...]


def schema_of(cls: type[Message]) -> MessageSchema:
    """Derive the schema of a message class from its annotations; header fields come before tensors."""
    hints = typing.get_type_hints(cls)
    header: list[tuple[str, Callable[[Any], Any]]] = []
    tensors: list[TensorField] = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        declared = field.metadata.get("tensor")
        if declared is not None:
            tensors.append(TensorField(field.name, declared[0], declared[1]))
        else:
            header.append((field.name, _checker(hints[field.name])))
    return MessageSchema(cls, tuple(header), tuple(tensors))


def _checker(hint: Any) -> Callable[[Any], Any]:
    if hint is BatchId:
        return BatchId.from_wire
    if hint is int:
        return _integer
    if hint is float:
        return _number
    if hint is bool:
        return _flag
    if hint is str:
        return _text
    if hint is dict or typing.get_origin(hint) is dict:
        return _mapping
    if hint == tuple[int, ...]:
        return _integers
    if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint):
        inner = _checker(next(arg for arg in typing.get_args(hint) if arg is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    raise TypeError(f"a message field cannot be of type {hint!r}")


def _integer(value: Any) -> int:
    if type(value) is not int or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError(f"an integer is expected, not {value!r:.80}")
    return value


def _integers(value: Any) -> tuple[int, ...]:
    if type(value) is not list or len(value) > MAX_NUMBERS:
        raise ValueError(f"a list of at most {MAX_NUMBERS} integers is expected, not {value!r:.80}")
    return tuple(_integer(item) for item in value)


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"a number is expected, not {value!r:.80}")
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"true or false is expected, not {value!r:.80}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"a text of at most {MAX_TEXT_CHARACTERS} characters is expected, not {value!r:.80}")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise ValueError(f"a map with text keys is expected, not {value!r:.80}")
    return value
