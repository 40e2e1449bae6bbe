"""The reason why a checkpoint is the best."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BestNote:
    """The reason why a checkpoint is the best.

    Attributes:
        metric, value: the metric of validation, and its value.
        examples: number of examples that were trained.
        input_digest: digest of the validation data; values on other data cannot be compared.
    """

    metric: str
    value: float
    examples: int
    input_digest: str
