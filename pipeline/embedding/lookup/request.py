"""Each row of a batch once, however many examples have it. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...types import Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """The distinct ones among S rows of a bank, and how to get from those to these and back.

    Ids have long tails: of a batch's rows only some are distinct, and the others need not travel.

    Attributes:
        rows: int32 [D]: each row once.
        which: int32 [S]: which of `rows` each is.
        order: int64 [S]: the places of the first of `rows`, ascending, then those of the next.
        begins: int64 [D]: where in `order` the places of each of `rows` begin.
    """

    rows: Int32Array
    which: Int32Array
    order: NDArray[np.int64]
    begins: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Int32Array, tables: int = 0, batch: int = 0) -> Distinct:
        """Of rows int32 [S], at least 0, the first of which are those of so many tables, `batch` each.

        No two tables have a row in common, nor one with what follows them, so each is sorted by itself.
        """
        # Row and place in one number: numpy sorts numbers by vector instructions, but not by an index.
        keys = rows.astype(np.int64)
        keys <<= 32
        keys |= np.arange(len(rows), dtype=np.int64)
        keys[: tables * batch].reshape(tables, batch).sort(axis=1)
        keys[tables * batch :].sort()
        order = keys & 0xFFFFFFFF
        keys >>= 32
        first = np.ones(len(rows), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        begins = np.flatnonzero(first)
        numbers = np.arange(len(begins), dtype=np.int32)
        which = np.empty(len(rows), np.int32)
        which[order] = np.repeat(numbers, np.diff(begins, append=len(rows)))
        return cls(keys[begins].astype(np.int32), which, order, begins)
