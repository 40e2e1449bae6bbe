"""An embedding row's optimizer state, and its bytes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import JobFileError

STORAGE_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}
"""Bytes of a float of a row in a node's memory, by name of the storage. State is always float32."""

DIRECTORY_BYTES: Final = 8 + 4 + 30
"""Bytes a row of a growing table beside its floats: key, last use, and at most so much of the index."""

TIME_BYTES: Final = 4
"""Bytes a row more where rows are freed by time."""


@dataclass(frozen=True, slots=True)
class RowState:
    """One array of an optimizer's state, float32 [rows], or [rows, dim] if `by_float`."""

    name: str
    by_float: bool

    def shape(self, rows: int, dim: int) -> tuple[int, ...]:
        """Return the shape of the state of `rows` rows."""
        return (rows, dim) if self.by_float else (rows,)


ROW_STATES: Final[dict[str, tuple[RowState, ...]]] = {
    "sgd": (),
    "rowwise_adagrad": (RowState("adagrad_sums", by_float=False),),
    "adagrad": (RowState("adagrad_squares", by_float=True),),
    "adam": (
        RowState("adam_means", by_float=True),
        RowState("adam_squares", by_float=True),
        RowState("adam_steps", by_float=False),
    ),
}


def row_states(optimizer: str) -> tuple[RowState, ...]:
    """Return the state arrays of an optimizer.

    Raises JobFileError for an unknown name.
    """
    if optimizer not in ROW_STATES:
        raise JobFileError(
            f'"{optimizer}" is not an optimizer',
            where="embedding.optimizer",
            remedy=f"use one of {', '.join(ROW_STATES)}",
        )
    return ROW_STATES[optimizer]


def state_floats(optimizer: str, dim: int) -> int:
    """Return how many floats of state an optimizer keeps for one row.

    Raises JobFileError for an unknown name.
    """
    return sum(dim if state.by_float else 1 for state in row_states(optimizer))


def row_bytes(optimizer: str, dim: int, storage: str) -> int:
    """Return a row's bytes in its node's memory, state included.

    Raises JobFileError for an unknown optimizer, KeyError for an unknown storage.
    """
    return STORAGE_BYTES[storage] * dim + 4 * state_floats(optimizer, dim)
