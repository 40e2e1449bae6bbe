"""The contract of a codec: float32 values to bytes and back, chunk by chunk, without memory of its own.

What a lossy codec loses is fed back by whoever encodes: it encodes the difference from a reference that both
ends hold, so that the next difference contains the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array

Payload = NDArray[np.uint8]


class CodecError(ValueError):
    """A payload that is not what the codec writes for so many elements, or values that it cannot write."""


class Codec(ABC):
    """One way to write float32 values. Instances are immutable; any thread may use them.

    Class attributes:
        name: what a job file calls it.
        lossy: whether `decode(encode(x))` may differ from `x`.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = True

    @abstractmethod
    def encode(self, values: Float32Array) -> Payload:
        """The payload, uint8 [bytes], of float32 [elements]; may share memory with `values`."""

    @abstractmethod
    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """float32 [elements]; may share memory with `payload`. Raises CodecError, also for a hostile one."""
