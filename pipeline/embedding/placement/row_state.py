"""What the optimizers of rows keep of each row, by name. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...errors import JobFileError

WEIGHTS: Final = "weights"
"""The name of the rows themselves, beside which the state is kept."""


@dataclass(frozen=True, slots=True)
class RowState:
    """One array of an optimizer's state, float32: [rows], or [rows, dim] if `by_float`."""

    name: str
    by_float: bool

    def shape(self, rows: int, dim: int) -> tuple[int, ...]:
        """Of the state of so many rows."""
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
STORAGE_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}
"""Of a float of a row in a node's memory, by the name of the storage. State is float32 always."""


def row_states(optimizer: str) -> tuple[RowState, ...]:
    """The state of an optimizer. Raises JobFileError for an unknown name."""
    if optimizer not in ROW_STATES:
        raise JobFileError(
            f'no optimizer "{optimizer}"',
            where="embedding.optimizer",
            remedy=f"give one of {', '.join(ROW_STATES)}",
        )
    return ROW_STATES[optimizer]


def state_floats(optimizer: str, dim: int) -> int:
    """Floats of state that an optimizer keeps for a row of `dim`. Raises JobFileError for an unknown name."""
    return sum(dim if state.by_float else 1 for state in row_states(optimizer))


def row_bytes(optimizer: str, dim: int, storage: str) -> int:
    """What a row of `dim` takes on its node with its state. Raises JobFileError for an unknown optimizer,
    KeyError for an unknown storage."""
    return STORAGE_BYTES[storage] * dim + 4 * state_floats(optimizer, dim)
