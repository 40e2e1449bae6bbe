"""Types that all parts of the pipeline share: the identity of a batch, and arrays by their dtype."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
Uint8Array: TypeAlias = NDArray[np.uint8]
Uint32Array: TypeAlias = NDArray[np.uint32]
Uint64Array: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
IndexArray: TypeAlias = Int64Array
"""Places in another array."""


class BatchId(NamedTuple):
    """Names one batch for ever: its contents are a pure function of these four numbers and the files.

    `number` counts the batches of one span, from 0 (tuples own the name `index`).
    """

    epoch: int
    span: int
    number: int
    seed: int

    @classmethod
    def from_wire(cls, value: Any) -> BatchId:
        """From four integers as msgpack gives them; raises ValueError for anything else."""
        if not isinstance(value, list | tuple) or len(value) != 4:
            raise ValueError(f"a batch id is four integers, not {value!r:.80}")
        # Files and arrays keep them as signed integers of 64 bits.
        if not all(type(part) is int and 0 <= part < 2**63 for part in value):
            raise ValueError(f"a batch id is four integers from 0 to 2**63 - 1, not {value!r:.80}")
        return cls(*value)
