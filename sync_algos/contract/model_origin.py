"""The model that a job produces.

Imports no torch, so that the coordinator may import it.
"""

from __future__ import annotations

from enum import StrEnum


class ModelOrigin(StrEnum):
    """The model that a job produces under an algorithm.

    `eval`, the report and the checkpoint follow it. CENTER: what the sync nodes hold. MEAN: the mean of the
    replicas at the end. GLOBAL: what the algorithm's `global_model` gives, the same on every trainer.
    REPLICAS: there is no single model; the quality is the mean of the replicas' own scores, and the first
    trainer's replica is the one saved.
    """

    CENTER = "center"
    MEAN = "mean"
    GLOBAL = "global"
    REPLICAS = "replicas"
