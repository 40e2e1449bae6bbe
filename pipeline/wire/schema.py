"""How a message class describes itself: header fields with their types, and tensors with dtype and rank."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .field_checks import check_at, check_of


@dataclasses.dataclass(frozen=True, slots=True)
class TensorField:
    """One raw frame of a message: `dtype` little-endian, `rank` dimensions."""

    name: str
    dtype: np.dtype[Any]
    rank: int


def tensor(dtype: str, rank: int, *, optional: bool = False) -> Any:
    """Declares a dataclass field that travels as a raw frame; `dtype` as numpy spells it, little-endian.

    With `optional` it defaults to a tensor without elements.
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
    """What `frames` needs to write and to validate one kind of message."""

    cls: type[Message]
    header: tuple[tuple[str, Callable[[Any], Any]], ...]
    tensors: tuple[TensorField, ...]


def schema_of(cls: type[Message]) -> MessageSchema:
    """The schema of a message class, derived from its annotations; header fields come before tensors."""
    hints = typing.get_type_hints(cls, include_extras=True)
    header: list[tuple[str, Callable[[Any], Any]]] = []
    tensors: list[TensorField] = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        declared = field.metadata.get("tensor")
        if declared is not None:
            tensors.append(TensorField(field.name, declared[0], declared[1]))
        else:
            check = functools.partial(check_at, field.name, check_of(hints[field.name]))
            header.append((field.name, check))
    return MessageSchema(cls, tuple(header), tuple(tensors))
