"""What one batch asks of one embedding node. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.batch import Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class LookupPlan:
    """One request, and where its answer belongs.

    Attributes:
        node: the node that is asked.
        rows: int32 [N], local to the node: for each table of `whole` the rows of all B examples, then for
            each piece of `cut` the rows that fall into it. N may be 0: there is then nothing to ask or to
            push, and the answer is an empty array.
        batch: B, the number of examples.
        whole: the tables that the node keeps whole, ascending.
        cut: the split tables that the node keeps a piece of, ascending.
        positions: for each piece of `cut`, which examples have their row in it: int64, ascending.
    """

    node: int
    rows: Int32Array
    batch: int
    whole: tuple[int, ...]
    cut: tuple[int, ...]
    positions: tuple[NDArray[np.int64], ...]
