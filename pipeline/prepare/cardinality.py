"""How many different values there are, from their hashes, in 16 KiB: HyperLogLog (Flajolet et al., 2007)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..data.hashing import Uint64Array

INDEX_BITS: Final = 14
REGISTERS: Final = 1 << INDEX_BITS
_VALUE_BITS: Final = 64 - INDEX_BITS
STANDARD_ERROR: Final = 1.04 / math.sqrt(REGISTERS)
"""Of the estimate, as a fraction of it: 0.8%."""


class Cardinality:
    """A sketch that depends on which hashes it was given, and neither on their order nor on how often.

    Attributes:
        registers: uint8 [REGISTERS]; the element-wise maximum of two sketches is that of both inputs.
    """

    def __init__(self, registers: NDArray[np.uint8] | None = None) -> None:
        self.registers = np.zeros(REGISTERS, np.uint8) if registers is None else registers.copy()

    def add(self, hashes: Uint64Array) -> None:
        """Counts hashes uint64 [n], of which all bits are taken to be drawn evenly."""
        index = (hashes & np.uint64(REGISTERS - 1)).astype(np.intp)
        # The place of the highest bit, from 1, of what is left: below 2**50, so exact as float64.
        _, length = np.frexp((hashes >> np.uint64(INDEX_BITS)).astype(np.float64))
        np.maximum.at(self.registers, index, (_VALUE_BITS + 1 - length).astype(np.uint8))

    def estimate(self) -> int:
        """How many different hashes there were, within some STANDARD_ERRORs."""
        alpha = 0.7213 / (1 + 1.079 / REGISTERS)
        raw = alpha * REGISTERS**2 / float(np.exp2(-self.registers.astype(np.float64)).sum())
        empty = int((self.registers == 0).sum())
        if raw <= 2.5 * REGISTERS and empty:
            raw = REGISTERS * math.log(REGISTERS / empty)
        return round(raw)
