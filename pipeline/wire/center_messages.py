"""Messages between trainers and sync nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..codecs.formats import Payload
from ..types import Float32Array
from .field_checks import Count
from .schema import Message, tensor


@dataclass(frozen=True, slots=True)
class CenterSeed(Message):
    """A chunk of a center's initial value, for elements `slice_start` to `slice_stop`.

    `start` is the position of the chunk's first element. All positions are those in the model.
    """

    KIND: ClassVar[str] = "center_seed"
    request: Count
    slice_start: Count
    slice_stop: Count
    start: Count
    values: Float32Array = tensor("float32", 1)


@dataclass(frozen=True, slots=True)
class CenterExchange(Message):
    """A chunk of a replica's slice, for one exchange with the center.

    All chunks of an exchange have the same `request`. If `reference` is 0, the payload is `elements` float32
    values. Otherwise it is the difference from the values of exchange number `reference`, encoded with the
    codec of this direction.
    """

    KIND: ClassVar[str] = "center_exchange"
    request: Count
    start: Count
    elements: Count
    reference: Count
    payload: Payload = tensor("uint8", 1)


@dataclass(frozen=True, slots=True)
class CenterContribution(CenterExchange):
    """`CenterExchange` of an algorithm whose center merges what several trainers have sent.

    `examples` is the number of examples behind the values. The reply comes when the merge closes.
    """

    KIND: ClassVar[str] = "center_contribution"
    examples: Count = 0


@dataclass(frozen=True, slots=True)
class CenterRead(Message):
    """A request for the center's current values of the elements `start` to `stop`."""

    KIND: ClassVar[str] = "center_read"
    request: Count
    start: Count
    stop: Count


@dataclass(frozen=True, slots=True)
class CenterValues(Message):
    """A chunk of the reply to a seed, an exchange or a read.

    The payload is a delta for an exchange, the merged values for a contribution, values for a read, and empty
    for a seed. If `coded`, it is encoded with the codec of this direction. Otherwise it is
    `elements` float32 values.
    """

    KIND: ClassVar[str] = "center_values"
    request: Count
    start: Count
    elements: Count
    coded: bool
    payload: Payload = tensor("uint8", 1)
