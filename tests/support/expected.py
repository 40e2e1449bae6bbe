"""Values as a test expects them: whatever else they are fails it."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def of_type(kind: type[T], value: object) -> T:
    """The value, which is of this type."""
    assert isinstance(value, kind), value
    return value
