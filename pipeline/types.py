"""Types that all packages share: arrays, bases of records, and the batch's identity."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
Uint8Array: TypeAlias = NDArray[np.uint8]
Uint32Array: TypeAlias = NDArray[np.uint32]
Uint64Array: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
IndexArray: TypeAlias = Int64Array

# Elements to which each parameter is aligned in a flat buffer.
FLAT_ALIGNMENT: Final = 16
MAX_PORT: Final = 65_535
# Of a job. The sums of their metrics must fit into one message, see `pipeline.metrics.quality`.
MAX_LABELS: Final = 8
# Of the rows of a group that count, see `pipeline.metrics.top_k`.
MOST_TOP_ROWS: Final = 1000
GROUP_METRICS: Final = ("ndcg", "recall", "map")
"""Metrics of the first k rows of each group; "ndcg@10" names one with its k."""
RANKED_METRICS: Final = ("recall", "ndcg", "hit")
"""Metrics of the first k items of a catalogue, named in the same way; "mrr" is one without a k."""
NEED_PROBABILITIES: Final = ("ne", "logloss", "calibration", "calibration_error")
"""Metrics that have a meaning for probabilities alone."""
TRAINING_ITEMS: Final = "training"
"""Where files of items are named, the items of the training part."""
# Paths of Kafka topics begin with it.
TOPIC_PREFIX: Final = "kafka://"
"""Positions in another array."""


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether all values are finite."""
    return bool(np.isfinite(values).all())


class FrozenModel(BaseModel):
    """Base of records that are written as JSON: frozen, no unknown keys.

    Attributes:
        ignored_fields: what a record may have that is not read: removed since it was written, or computed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    ignored_fields: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or not cls.ignored_fields:
            return tree
        return {name: value for name, value in tree.items() if name not in cls.ignored_fields}


class ResultModel(FrozenModel):
    """Base of records of results: no NaN, and None for what was not measured."""

    model_config = ConfigDict(allow_inf_nan=False)


def first_fault(error: ValidationError) -> str:
    """Return the place, if any, and the message of a record's first fault."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    said = first["msg"].removeprefix("Value error, ")
    return f"{place}: {said}" if place else said


class RankingSettings(NamedTuple):
    """What is ranked within groups.

    Attributes:
        k: how many rows of a group count.
        group: place of the column among those of kind "group".
        label: place of the label.
    """

    k: int
    group: int
    label: int


class RetrievalSettings(NamedTuple):
    """What is ranked among a whole catalogue.

    Attributes:
        k: how many items count.
        items: file, glob or URL of the catalogue's items; "training" for those of the training part.
        group: place of the column of queries among those of kind "group"; None if each row is a query.
        exclude_trained: whether a group's items in the training part are left out.
    """

    k: int
    items: str
    group: int | None
    exclude_trained: bool

    @property
    def needs_training_part(self) -> bool:
        return self.items == TRAINING_ITEMS or self.exclude_trained


class BatchId(NamedTuple):
    """The identity of one batch.

    The contents of the batch depend only on this id and the files. `number` counts the batches of one span,
    from 0. (It is not called `index`, because a tuple has a method of this name.)
    """

    epoch: int
    span: int
    number: int
    seed: int

    @classmethod
    def from_wire(cls, value: Any) -> BatchId:
        """Return the id from a list or tuple of four integers, which msgpack decoded.

        Raises ValueError for anything else.
        """
        if not isinstance(value, list | tuple) or len(value) != 4:
            raise ValueError(f"a batch id is four integers, not {value!r:.80}")
        # Files and arrays store the parts as signed 64-bit integers.
        if not all(type(part) is int and 0 <= part < 2**63 for part in value):
            raise ValueError(f"a batch id is four integers from 0 to 2**63 - 1, not {value!r:.80}")
        batch = cls(*value)
        # Ranges of batches are stored with the number after their last batch.
        if batch.number == 2**63 - 1:
            raise ValueError(f"batch number {batch.number} is too large")
        return batch
