"""What a reader may deliver: a batch of this job, whose every number can be."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.types import Float32Array, Uint64Array
from ...pipeline.wire.messages import Delivery
from ..runtime.span_proofs import ProofCheck

REMEDY: Final = "use one version of shadowsync, and of a prepared folder, on all nodes"


class DeliveryCheck:
    """The check of every delivery, before anything of it is used.

    Any thread may call it.

    Args:
        grant_key: the coordinator's key of the proofs that readers were given spans.
    """

    def __init__(self, job: Job, router: ShardRouter, grant_key: str) -> None:
        self._proofs = ProofCheck(grant_key)
        self._router = router
        self._batch = job.trainer.batch
        self._seed = job.run.seed
        self._epochs = job.data.epochs
        self._dense = job.data.dense_width
        self._labels = len(job.data.label_names)
        self._groups = len(job.data.columns_as("group"))
        self._weighted = bool(job.data.columns_as("weight"))

    def require(self, reader: str, delivery: Delivery) -> None:
        """Raise ValueError, with the batch's id, for a delivery of a reader that cannot be."""
        try:
            self._require(delivery)
            if delivery.pass_number == 0:
                self._proofs.require(reader, delivery.id, delivery.proof)
        except ValueError as error:
            # By mistake only a node of another version, or with another prepared folder, sends such a batch.
            raise ValueError(f"batch {tuple(delivery.id)}: {error}; {REMEDY}") from error

    def _require(self, delivery: Delivery) -> None:
        batch_id, examples = delivery.id, len(delivery.labels)
        if batch_id.seed != self._seed or batch_id.epoch >= self._epochs:
            raise ValueError(f"this job has the seed {self._seed} and {self._epochs} epochs")
        if not 0 < examples <= self._batch:
            raise ValueError(f"{examples} examples; a batch has 1 to {self._batch}")
        _require_shape("dense values", delivery.dense, (examples, self._dense))
        others = self._labels - 1
        _require_shape("other labels", delivery.other_labels, (others, examples) if others else (0, 0))
        groups = (self._groups, examples) if self._groups else (0, 0)
        _require_shape("groups", delivery.groups, groups)
        if not (_are_labels(delivery.labels) and _are_labels(delivery.other_labels)):
            raise ValueError("a label is neither 0 nor 1")
        if not np.isfinite(delivery.dense).all():
            raise ValueError("a dense value is not finite")
        self._require_weights(delivery, examples)
        self._router.check(delivery, examples)

    def _require_weights(self, delivery: Delivery, examples: int) -> None:
        _require_shape("sample weights", delivery.weights, (examples if self._weighted else 0,))
        for name, weights in (("sample", delivery.weights), ("item", delivery.item_weights)):
            if len(weights) and not (np.isfinite(weights).all() and weights.min() >= 0):
                raise ValueError(f"a weight of a {name} is below 0, or not finite")


def _require_shape(what: str, values: Float32Array | Uint64Array, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ValueError(f"{what} of shape {list(values.shape)}; it has to be {list(shape)}")


def _are_labels(values: Float32Array) -> bool:
    return bool(((values == 0) | (values == 1)).all())
