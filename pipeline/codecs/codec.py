"""What a codec is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array

Payload = NDArray[np.uint8]


class CodecError(ValueError):
    """A payload cannot be decoded, or values cannot be encoded."""


class Codec(ABC):
    """One encoding of float32 values.

    Instances are immutable; any thread may use them.

    Class attributes:
        name: its name in a job file.
        lossy: whether `decode(encode(x))` may differ from `x`.
    """

    name: ClassVar[str]
    lossy: ClassVar[bool] = True

    @abstractmethod
    def encode(self, values: Float32Array) -> Payload:
        """Return the payload, uint8 [bytes], of float32 [elements].

        The payload may share memory with `values`.
        """

    @abstractmethod
    def decode(self, payload: Payload, elements: int) -> Float32Array:
        """Return float32 [elements]; may share memory with `payload`.

        Raises CodecError, also for a hostile payload.
        """
