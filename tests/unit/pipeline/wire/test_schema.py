"""How a message class describes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.field_checks import MAX_INTEGER, MAX_ITEMS, MAX_TEXT_CHARACTERS
from shadowsync.pipeline.wire.schema import Message, schema_of, tensor


@dataclass(frozen=True, slots=True)
class Everything(Message):
    KIND: ClassVar[str] = "everything"
    whole: int
    real: float
    flag: bool
    text: str
    table: dict[str, Any]
    id: BatchId
    maybe: int | None
    several: tuple[int, ...]
    one: NDArray[np.float32] = tensor("float32", 1)  # noqa: RUF009
    two: NDArray[np.int64] = tensor("int64", 2)  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Unfit(Message):
    KIND: ClassVar[str] = "unfit"
    items: list[int]


def checker(name: str) -> Callable[[Any], Any]:
    return dict(schema_of(Everything).header)[name]


def test_header_fields_and_tensors_keep_their_order() -> None:
    schema = schema_of(Everything)
    assert schema.cls is Everything
    names = [name for name, _ in schema.header]
    assert names == ["whole", "real", "flag", "text", "table", "id", "maybe", "several"]
    assert [(field.name, field.rank) for field in schema.tensors] == [("one", 1), ("two", 2)]
    assert [field.dtype.newbyteorder("<") for field in schema.tensors] == [np.dtype("<f4"), np.dtype("<i8")]


def test_a_field_of_another_type_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="cannot be of type"):
        schema_of(Unfit)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", MAX_INTEGER),
        ("whole", -MAX_INTEGER),
        ("real", 0.5),
        ("flag", False),
        ("text", "é" * MAX_TEXT_CHARACTERS),
        ("table", {}),
        ("table", {"a": [1, {"b": None}]}),
        ("maybe", None),
        ("maybe", 3),
    ],
)
def test_what_is_declared_is_taken_as_it_is(name: str, value: Any) -> None:
    taken = checker(name)(value)
    assert (type(taken), taken) == (type(value), value)


def test_numbers_become_floats_and_lists_batch_ids() -> None:
    assert type(checker("real")(3)) is float
    assert checker("several")([1, 2]) == (1, 2)
    assert checker("several")([]) == ()
    assert checker("id")([1, 2, 3, 4]) == BatchId(epoch=1, span=2, number=3, seed=4)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("whole", MAX_INTEGER + 1, "an integer"),
        ("whole", True, "an integer"),
        ("whole", 1.0, "an integer"),
        ("real", "1", "a number"),
        ("real", True, "a number"),
        ("flag", 1, "true or false"),
        ("flag", None, "true or false"),
        ("text", "é" * (MAX_TEXT_CHARACTERS + 1), "a text of at most"),
        ("text", b"bytes", "a text of at most"),
        ("table", [], "a table with text keys"),
        ("table", {b"a": 1}, "a table of at most 4096 text keys"),
        ("id", [1, 2, 3], "a batch id"),
        ("maybe", "3", "an integer"),
        ("several", 3, "a list of at most"),
        ("several", [0] * (MAX_ITEMS + 1), "a list of at most"),
        ("several", [1, "2"], "an integer"),
    ],
)
def test_anything_else_is_refused_in_few_words(name: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        checker(name)(value)
    assert len(str(refused.value)) < 200
