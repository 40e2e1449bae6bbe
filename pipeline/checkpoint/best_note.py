"""The reason why a checkpoint is the best."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BestNote:
    """The reason why a checkpoint is the best.

    Attributes:
        metric, value: the metric of validation, and its value.
        examples: number of examples that were trained.
        input_digest: digest of the validation data and of what ranks it; values of other ones cannot be
            compared.
    """

    metric: str
    value: float
    examples: int
    input_digest: str
