"""One training step and one evaluation step of a worker."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..pipeline.data.batch import Float32Array
from ..pipeline.embedding.lookup import LookupPlan
from ..pipeline.errors import ExitCode, ShadowSyncError
from ..pipeline.metrics.quality import QualitySums
from ..pipeline.wire.messages import Delivery
from .replica import Shared


class Diverged(ShadowSyncError):
    """The loss of a batch is not a finite number; settings of the job file must change."""

    exit_code = ExitCode.USAGE


class Stepper:
    """A worker's own modules: parameters shared with the other workers, gradients of its own.

    Owned by one worker thread.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._gradient = torch.zeros(shared.layout.numel, dtype=torch.float32)
        self._module: nn.Module = copy.deepcopy(shared.template)
        shared.layout.attach(self._module, shared.replica.flat, self._gradient)
        self._module.train()
        self._optimizer = shared.optimizer.for_worker(self._gradient)
        self._scorer: nn.Module = copy.deepcopy(shared.template)
        self._scorer.eval()

    def train(
        self, delivery: Delivery, requests: Sequence[LookupPlan], answers: Sequence[Float32Array]
    ) -> tuple[float, list[Float32Array]]:
        """Forward, backward and the dense update, lock-free on the shared replica.

        Gives the batch's mean log loss before the update, and for each embedding node the gradients of the
        mean loss, float32 [N, dim]. Raises Diverged.
        """
        vectors = self._shared.router.assemble(requests, list(answers))
        logits = self._module(torch.from_numpy(delivery.dense), vectors.embeddings)
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(delivery.labels))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is {value} at batch {tuple(delivery.id)}",
                where="training",
                remedy="lower trainer.lr or embedding.lr",
            )
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return value, vectors.gradients()

    def score_with(self, flat: torch.Tensor) -> None:
        """From now on `score` uses these weights, float32 [numel]; they are not copied."""
        self._shared.layout.attach(self._scorer, flat)

    def score(
        self,
        delivery: Delivery,
        requests: Sequence[LookupPlan],
        answers: Sequence[Float32Array],
        sums: QualitySums,
    ) -> None:
        """Adds the batch's logits and labels to `sums`; changes no weight."""
        with torch.no_grad():
            vectors = self._shared.router.assemble(requests, list(answers))
            logits = self._scorer(torch.from_numpy(delivery.dense), vectors.embeddings)
        sums.add(logits.numpy(), delivery.labels)
