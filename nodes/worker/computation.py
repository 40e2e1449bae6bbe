"""Forward pass, backward pass and update of a batch, on its device."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ...pipeline.config.model import IN_BATCH_SOFTMAX
from ...pipeline.embedding.lookup.gather_indices import GatherLayout
from ...pipeline.embedding.lookup.vectors import BatchEmbeddings
from ...pipeline.models.layers.dense import clip_, mean_log_loss
from ...pipeline.models.layers.sequences import Embeddings, with_lengths
from ...pipeline.models.own.loss import LossBatch, LossFault, in_float32, own_loss
from ...pipeline.models.training.flat import BFloat16Weights, GradientWatch
from ...pipeline.models.training.loss import TrainingLoss
from ...pipeline.models.training.optimizers import SharedOptimizer
from ...pipeline.types import Float32Array
from ..replica.device import Computed, Staged
from ..replica.replica import TrainerContext

LOSS_NOT_FINITE = "its loss is not finite"
DENSE_NOT_FINITE = "a gradient of its dense parameters is not finite"
EMBEDDINGS_NOT_FINITE = "a gradient of its embeddings is not finite"


@dataclass(slots=True)
class ModelInputs:
    """What a model is trained on.

    Attributes:
        labels: float32 [B], or [B, T] of T labels.
        weights: float32 [B], or None for a job without sample weights.
        dense: float32 [B, D].
        embeddings: one tensor per table, float32 [B, K_t], with autograd; [B, L_t, K_t] for a sequence, and
            [N_t, K_t] for a jagged one.
        lengths: number of vectors of each example, int32 [B], for each table that is a sequence.
        leaves: where the backward pass ends.
        groups, log_frequency, negatives: see `HostBatch`.
    """

    labels: torch.Tensor
    weights: torch.Tensor | None
    dense: torch.Tensor
    embeddings: list[torch.Tensor]
    lengths: dict[int, torch.Tensor]
    leaves: list[torch.Tensor]
    groups: torch.Tensor | None = None
    log_frequency: torch.Tensor | None = None
    negatives: torch.Tensor | None = None

    @property
    def of_model(self) -> Embeddings:
        """The embeddings as a model gets them."""
        return with_lengths(self.embeddings, self.lengths)


@dataclass(slots=True)
class _Started:
    """The tensors of a batch that is being computed.

    Attributes:
        lr: learning rate, a scalar on the device; None on the host.
        result: loss, norm and logits, once computed.
    """

    vectors: BatchEmbeddings
    inputs: ModelInputs
    lr: torch.Tensor | None
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None


@dataclass(slots=True)
class BatchWork:
    """What is computed of a batch, as far as it is.

    Attributes:
        staged: the batch on its device.
        layout: of its vectors.
        is_replay: whether its update was made before.
        dense_scale: factor for the learning rate of the dense parameters.
        targets: memory for each node's gradients on the CPU, float32; see `BatchEmbeddings.gradients_into`.
        bad: on a device, a scalar that is true if a number is not finite.
        used: which parameters have a gradient, see `GradientWatch`; None for all.
        left_out: why it changes nothing, where the host may ask; else empty.
        computed: its results, after the update.
    """

    staged: Staged
    layout: GatherLayout
    is_replay: bool = False
    dense_scale: float = 1.0
    targets: Sequence[Float32Array | None] = ()
    bad: torch.Tensor | None = None
    used: tuple[bool, ...] | None = None
    left_out: str = ""
    computed: Computed | None = None
    started: _Started | None = field(default=None, repr=False)


class Computation:
    """A module with gradients of its own, which updates shared weights.

    Owned by one worker thread; call it on the worker's stream.

    A batch changes nothing if its loss or gradients are NaN or infinite, or so large that their squares are.

    Args:
        context: the trainer's.
        flat: the weights, float32 [numel], on the device.
        optimizer: their optimizer.
        enqueues: whether a device does the work later. Then nothing here waits for it: the learning rate is
            read there, and a bad batch's update does nothing. Otherwise such a batch is left out before the
            update.
    """

    def __init__(
        self, context: TrainerContext, flat: torch.Tensor, optimizer: SharedOptimizer, *, enqueues: bool
    ) -> None:
        device = context.device.torch_device
        self._settings = context.job.trainer
        self._loss = TrainingLoss(context.job.model, context.job.data.loss_weights)
        self._own = context.job.model.has_own_loss, not context.job.model.has_logits
        self._has_items = context.job.model.loss == IN_BATCH_SOFTMAX
        self._stored_groups = list(context.job.data.columns_as("group"))
        self._row_number = context.job.data.row_number
        self._enqueues = enqueues
        self._device_type = device.type
        self._gradient = torch.zeros(context.layout.numel, dtype=torch.float32, device=device)
        self._no_norm = torch.zeros((), device=device)
        self.module = copy.deepcopy(context.template).to(device)
        context.constants.attach(self.module)
        self._rounded: BFloat16Weights | None = None
        if context.precision == "bfloat16":
            self._rounded = BFloat16Weights(context.layout, self.module, flat, self._gradient)
        else:
            context.layout.attach(self.module, flat, self._gradient)
        self._watch = GradientWatch(context.layout, self.module)
        self.module.train()
        self._optimizer = optimizer.for_worker(self._gradient)

    def run(self, work: BatchWork) -> None:
        """Compute a batch, and update the weights unless the batch is left out."""
        self.compute(work)
        if not work.left_out:
            self.update(work)

    def compute(self, work: BatchWork) -> None:
        """Run forward and backward."""
        started = work.started = self._start(work)
        inputs = started.inputs
        if self._rounded is not None:
            self._rounded.refresh()
        with self._precision():
            outputs = in_float32(self.module(inputs.dense, inputs.of_model))
        try:
            loss, log_loss, logits = self._losses(outputs, inputs)
        except LossFault as error:
            work.left_out = str(error)
            return
        # The second is what is reported, and may be of other rows than a loss of one's own.
        if not self._enqueues and not (math.isfinite(loss.detach()) and math.isfinite(log_loss)):
            work.left_out = LOSS_NOT_FINITE
            return
        self._backward(loss)
        work.used = self._watch.used()
        reported_loss = self._check_finite(work, inputs.leaves, loss.detach(), log_loss)
        if work.left_out:
            return
        limit = self._settings.clip_norm
        norm = self._no_norm if limit is None else clip_(self._gradient, limit)
        started.result = reported_loss, norm, logits.detach()

    def update(self, work: BatchWork) -> None:
        """Update the weights with the computed gradient; then there are results.

        A replay makes no update.
        """
        started = work.started
        assert started is not None
        assert started.result is not None
        if not work.is_replay:
            self._optimizer.step(work.dense_scale, work.bad, work.used, started.lr)
        work.computed = Computed(*started.result, gradients=started.vectors.leaf_gradients())
        work.started = None

    def _start(self, work: BatchWork) -> _Started:
        inputs = work.staged.inputs()
        vectors = BatchEmbeddings(work.layout, inputs.tensors, inputs.data)
        if work.targets and self._device_type == "cpu" and not self._enqueues:
            vectors.gradients_into(
                [None if target is None else torch.from_numpy(target) for target in work.targets]
            )
        whole = ModelInputs(
            inputs.labels,
            inputs.weights,
            inputs.dense,
            vectors.embeddings,
            vectors.lengths,
            vectors.leaves,
            inputs.groups,
            inputs.log_frequency,
            inputs.negatives,
        )
        return _Started(vectors, whole, inputs.lr if self._enqueues else None)

    def _losses(self, outputs: Any, inputs: ModelInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss to minimize and, without a graph, the loss to report, and the logits or scores.

        The loss to report is the log loss of the first label, or that of one's own where scores are not
        logits. Raises LossFault, with the reason, for a loss of one's own that cannot be minimized.
        """
        has_own_loss, has_own_scores = self._own
        if self._loss.is_plain and not has_own_loss:
            loss = mean_log_loss(outputs, inputs.labels, inputs.weights)
            return loss, loss.detach(), outputs
        if has_own_loss:
            loss = own_loss(self.module, outputs, self._loss_batch(inputs))
            if has_own_scores:
                with torch.no_grad():
                    scores: torch.Tensor = self.module.scores(outputs)  # type: ignore[operator]
                return loss, loss.detach(), scores
        else:
            loss = self._loss.mean(outputs, inputs.labels, inputs.weights)
        calibrated, labels = outputs.detach() + self._loss.logit_offset, inputs.labels
        if labels.ndim > 1:
            calibrated, labels = calibrated[:, 0], labels[:, 0]
        return loss, mean_log_loss(calibrated, labels, inputs.weights), outputs

    def _loss_batch(self, inputs: ModelInputs) -> LossBatch:
        groups: Sequence[torch.Tensor] = () if inputs.groups is None else inputs.groups.unbind()
        if self._has_items:
            (items,) = groups
            return LossBatch(inputs.labels, inputs.weights, {}, items, inputs.log_frequency, inputs.negatives)
        by_name = dict(zip(self._stored_groups, groups, strict=True))
        positions = by_name.pop(self._row_number, None)
        return LossBatch(inputs.labels, inputs.weights, by_name, positions=positions)

    def _precision(self) -> AbstractContextManager[object]:
        if self._rounded is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=torch.bfloat16)

    def _backward(self, loss: torch.Tensor) -> None:
        """Compute the flat gradient of the loss, and the embeddings' gradients."""
        if self._rounded is None:
            self._gradient.zero_()
        else:
            self._rounded.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._rounded is not None:
            self._rounded.collect()

    def _check_finite(
        self,
        work: BatchWork,
        leaves: Sequence[torch.Tensor],
        minimized: torch.Tensor,
        loss: torch.Tensor,
    ) -> torch.Tensor:
        """Check that the gradients' squares are finite, and on a device both losses.

        On the host the result is `work.left_out`. On a device it is `work.bad`. Returns the loss to report,
        which is NaN on a device if one is not finite.
        """
        # Squares, because optimizers keep those: 1e20 is finite, but its float32 square is not.
        dense = self._gradient.dot(self._gradient)
        flat = [leaf.grad.flatten() for leaf in leaves if leaf.grad is not None]
        rows = [gradient.dot(gradient) for gradient in flat]
        if self._enqueues:
            work.bad = ~torch.isfinite(torch.stack([minimized, loss, dense, *rows])).all()
            return loss.masked_fill(work.bad, math.nan)
        if not math.isfinite(dense):
            work.left_out = DENSE_NOT_FINITE
        elif not all(math.isfinite(square) for square in rows):
            work.left_out = EMBEDDINGS_NOT_FINITE
        return loss
