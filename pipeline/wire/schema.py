"""Schemas of messages, derived from their classes.

A schema has the header fields with their checks, and the tensors with dtype and rank. Written by hand,
because libraries for schemas know no tensor frames, whose sizes follow from header fields.
"""

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
    """A tensor of a message, one raw frame: little-endian `dtype`, `rank` dimensions.

    `omitted` says that it is not sent when its dimensions are all 0 and no tensor comes after it.
    """

    name: str
    dtype: np.dtype[Any]
    rank: int
    omitted: bool = False


def tensor(dtype: str, rank: int, *, optional: bool = False, omitted: bool = False) -> Any:
    """Declare a dataclass field that is sent as a raw frame.

    `dtype` is a numpy name, little-endian on the wire. With `optional` or `omitted` the default is an empty
    tensor; see `TensorField`.
    """
    kind = np.dtype(dtype).newbyteorder("<")
    metadata = {"tensor": (kind, rank, omitted)}
    if not (optional or omitted):
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=lambda: np.zeros((0,) * rank, kind))


class Message:
    """Base of all messages: frozen dataclasses, which `KIND` names on the wire."""

    KIND: ClassVar[str]


@dataclasses.dataclass(frozen=True)
class MessageSchema:
    """The fields of one kind of message, for encoding and validation in `frames`."""

    cls: type[Message]
    header: tuple[tuple[str, Callable[[Any], Any]], ...]
    tensors: tuple[TensorField, ...]

    @functools.cached_property
    def least_tensors(self) -> int:
        """Number of tensors that are always sent."""
        kept = [number + 1 for number, field in enumerate(self.tensors) if not field.omitted]
        return max(kept, default=0)


def schema_of(cls: type[Message]) -> MessageSchema:
    """Derive the schema of a message class from its annotations.

    Header fields come before tensors.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    header: list[tuple[str, Callable[[Any], Any]]] = []
    tensors: list[TensorField] = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        declared = field.metadata.get("tensor")
        if declared is not None:
            tensors.append(TensorField(field.name, *declared))
        else:
            check = functools.partial(check_at, field.name, check_of(hints[field.name]))
            header.append((field.name, check))
    return MessageSchema(cls, tuple(header), tuple(tensors))
