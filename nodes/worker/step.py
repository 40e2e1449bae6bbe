"""Training and scoring steps of a worker."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from ...pipeline.config.model import IN_BATCH_SOFTMAX
from ...pipeline.config.trainer import warmup_factor
from ...pipeline.data.batch import label_columns
from ...pipeline.data.batches.split_by_id import IdReader
from ...pipeline.embedding.lookup.gather_indices import GatherIndices
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.embedding.lookup.vectors import BatchEmbeddings
from ...pipeline.errors import ProtocolError
from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.models.built_in.two_tower import HardNegatives
from ...pipeline.models.layers.dense import mean_log_loss
from ...pipeline.models.layers.sequences import with_lengths
from ...pipeline.models.own.loss import scoring
from ...pipeline.models.registry import takes_jagged
from ...pipeline.models.training.optimizers import EMA_EVERY
from ...pipeline.types import Float32Array, Int64Array
from ...pipeline.wire.messages import Delivery
from ..replica.device import Computed, HostBatch, PendingResult, Staged, StepResult
from ..replica.replica import TrainerContext
from .captured_steps import EAGER, CapturedSteps, StepCapture, no_event
from .computation import BatchWork, Computation

STEP_NOT_FINITE = "its loss or a gradient is not finite"
JAGGED_SIZES = "the model takes jagged sequences, whose sizes differ in each batch"


@dataclass(slots=True)
class Step(BatchWork):
    """A training step in progress.

    Attributes:
        rows_scale: factor for the learning rates of the embedding rows for this batch.
        pending: results in flight from the device; None for a batch that is left out.
        left_out: why the batch changes nothing; empty if it trains. Known after the launch if no step is
            launched ahead, otherwise after the finish.
        other_losses: mean log loss of each further label before the update, once finished; as that of the
            first, which `Stepper.finish` returns.
    """

    delivery: Delivery = field(kw_only=True)
    rows_scale: float = 1.0
    pending: PendingResult | None = None
    other_losses: tuple[float, ...] = ()


class Stepper:
    """A worker's steps.

    Owned by one worker thread. A step is staged, launched and finished; on a GPU only `finish` waits for the
    device, so that a worker may launch `ahead` further steps before it finishes one.

    A batch changes nothing if its loss or gradients are NaN or infinite, or so large that their squares are.
    On the host it is left out before the update. On a device the enqueued update then does nothing, since the
    host does not wait for the check.

    Args:
        context: the trainer's.
        event: called with what a user should know of the steps.
    """

    def __init__(self, context: TrainerContext, event: Callable[[str], None] = no_event) -> None:
        self._context = context
        self._settings = context.job.trainer
        self._label_count = len(context.job.data.label_names)
        self._logit_offset = np.float32(context.job.model.logit_offset)
        self.ahead = 0 if context.job.run.deterministic else context.device.steps_ahead
        flat = context.replica.flat
        self._computation = Computation(context, flat, context.optimizer, enqueues=self.ahead > 0)
        self._scorer = copy.deepcopy(context.template).to(context.device.torch_device)
        context.constants.attach(self._scorer)
        self._scorer.eval()
        self._scoring = scoring(context.job, self._scorer)
        self._has_logits = context.job.model.has_logits
        self._ships_groups = context.job.model.loss == "own"
        self._item_ids: IdReader | None = None
        if context.job.model.loss == IN_BATCH_SOFTMAX:
            self._item_ids = IdReader(context.job.embedded_columns, context.job.model.item[0])
        self._negatives = HardNegatives(context.job) if context.job.model.negatives else None
        self._stream = context.device.open_stream()
        self._captured: CapturedSteps | None = None
        if self.ahead and isinstance(self._stream, StepCapture):
            if takes_jagged(context.job):
                event(f"{EAGER}{JAGGED_SIZES}")
            else:
                self._captured = CapturedSteps(context, self._computation, self._stream, event)
        self._batches = 0
        self.clipped_steps = 0

    @property
    def module(self) -> nn.Module:
        """Return the module that trains, with gradients of its own."""
        return self._computation.module

    @property
    def captured_steps(self) -> int:
        """Return how many steps were replays of a captured one."""
        return 0 if self._captured is None else self._captured.replays

    def stage(
        self, delivery: Delivery, requests: Sequence[LookupPlan], replies: Sequence[Float32Array]
    ) -> Step:
        """Start copying a batch to the device.

        `replies` must not change until `finish`.
        """
        dense_scale, rows_scale = self._rate_scales(len(delivery.labels))
        indices, staged = self._stage(delivery, requests, replies, self._settings.lr * dense_scale)
        return Step(
            staged,
            indices.layout,
            is_replay=delivery.replay,
            dense_scale=dense_scale,
            delivery=delivery,
            rows_scale=rows_scale,
        )

    def launch(self, step: Step) -> None:
        """Run forward, backward and the lock-free update.

        A batch with non-finite numbers makes no update.
        """
        with self._stream.computing(step.staged):
            if self._captured is not None:
                self._captured.run(step)
                if not step.left_out:
                    self._fetch(step)
                return
            self.compute(step)
            if not step.left_out:
                self.update(step)

    def compute(self, step: Step) -> None:
        """Run forward and backward, the first half of `launch`.

        An emulation of a step's time waits between this and `update`.
        """
        self._computation.compute(step)

    def update(self, step: Step) -> None:
        """Update the shared replica with the computed gradient, and fetch the results.

        A replay makes no update, since it has made its own before.
        """
        self._computation.update(step)
        self._fetch(step)

    def finish(self, step: Step, progressive: QualitySums | None = None) -> tuple[float, list[Float32Array]]:
        """Wait for the step's results; return its loss and each embedding node's gradients.

        The loss is the batch's mean log loss of the first label before the update, weighted if the job has
        sample weights, with the logits of true probabilities where the job weights positives. The gradients
        are those of the mean loss that the job minimizes, float32 [N, dim]. For a batch that is left out
        (`step.left_out`) the loss is 0, without gradients. The logits before the update, likewise of true
        probabilities, are added to `progressive` if given. Where scores are no logits, there is no log loss,
        and the losses are 0.
        """
        result = None if step.left_out else self._result(step)
        if result is None:
            return 0.0, []
        limit = self._settings.clip_norm
        self.clipped_steps += limit is not None and result.norm > limit
        if progressive is not None or self._label_count > 1:
            logits = result.logits + self._logit_offset
            if self._label_count > 1 and self._has_logits:
                step.other_losses = _losses_of_others(logits, step.delivery)
            elif self._label_count > 1:
                step.other_losses = (0.0,) * (self._label_count - 1)
            if progressive is not None:
                progressive.add(logits, self._labels(step.delivery), _weights(step.delivery))
        return result.loss if self._has_logits else 0.0, result.gradients

    def train(
        self,
        delivery: Delivery,
        requests: Sequence[LookupPlan],
        replies: Sequence[Float32Array],
        progressive: QualitySums | None = None,
    ) -> tuple[float, list[Float32Array]]:
        """Run a whole step at once; see `finish`."""
        step = self.stage(delivery, requests, replies)
        self.launch(step)
        return self.finish(step, progressive)

    def score_with(self, flat: torch.Tensor) -> None:
        """Use these weights, float32 [numel], in `score` from now on.

        If they are on the device, they are not copied.
        """
        self._context.layout.attach(self._scorer, self._context.device.place(flat))

    def score(
        self,
        delivery: Delivery,
        requests: Sequence[LookupPlan],
        replies: Sequence[Float32Array],
        sums: PassSums,
    ) -> None:
        """Add the batch's logits and labels to `sums`, without changing a weight.

        Computes in float32, whatever the precision of training. The logits are calibrated where negatives
        were left out of training.
        """
        indices, staged = self._stage(delivery, requests, replies)
        with torch.no_grad(), self._stream.computing(staged):
            inputs = staged.inputs()
            vectors = BatchEmbeddings(indices.layout, inputs.tensors, inputs.data)
            logits = self._scoring(inputs.dense, with_lengths(vectors.embeddings, vectors.lengths))
            nothing = logits.new_zeros(())
            pending = self._stream.fetch(staged, Computed(nothing, nothing, logits))
        offset = np.float32(self._context.job.logit_offset)
        logits = pending.wait().logits + offset
        sums.add(logits, self._labels(delivery), _weights(delivery), delivery.groups)

    def _stage(
        self,
        delivery: Delivery,
        requests: Sequence[LookupPlan],
        replies: Sequence[Float32Array],
        lr: float = 0.0,
    ) -> tuple[GatherIndices, Staged]:
        pad = None if self._captured is None else self._captured.pad
        indices, data = self._context.router.gather(requests, list(replies), pad)
        labels, weights = self._labels(delivery), _weights(delivery)
        groups = delivery.groups.view(np.int64) if self._ships_groups and len(delivery.groups) else None
        log_frequency = negatives = None
        if self._item_ids is not None:
            items = self._item_ids(delivery).view(np.int64)
            groups, log_frequency = items[None], self._log_frequency(delivery, items)
            if self._negatives is not None and not delivery.pass_number:
                negatives = self._mask(delivery, indices, self._negatives, items)
        batch = HostBatch(
            labels, weights, delivery.dense, indices, data, lr, groups, log_frequency, negatives
        )
        return indices, self._stream.stage(batch)

    def _log_frequency(self, delivery: Delivery, items: Int64Array) -> Float32Array | None:
        """Count the items of a batch that is trained for the first time; return what `HostBatch` has."""
        frequency = self._context.item_frequency
        if frequency is None or delivery.pass_number:
            return None
        if not delivery.replay:
            frequency.add(items)
        return frequency.log_share(items)

    def _mask(
        self, delivery: Delivery, indices: GatherIndices, negatives: HardNegatives, items: Int64Array
    ) -> Float32Array:
        longest = indices.longest_of(negatives.column)
        return negatives.mask(delivery.bag_rows, delivery.bag_lengths, delivery.bag_keys, items, longest)

    def _fetch(self, step: Step) -> None:
        assert step.computed is not None
        self._batches += not step.is_replay
        if self._settings.ema is not None and self._batches % EMA_EVERY == 0 and not step.is_replay:
            self._context.optimizer.average()
        step.pending = self._stream.fetch(step.staged, step.computed)

    def _labels(self, delivery: Delivery) -> Float32Array:
        others, examples = self._label_count - 1, len(delivery.labels)
        if delivery.other_labels.shape != ((others, examples) if others else (0, 0)):
            raise ProtocolError(
                f"batch {delivery.id} has other labels of shape {delivery.other_labels.shape}; the job has"
                f" {self._label_count} labels, and the batch {examples} examples"
            )
        return label_columns(delivery.labels, delivery.other_labels)

    def _rate_scales(self, examples: int) -> tuple[float, float]:
        """Return the factors of the dense and row learning rates."""
        last = self._context.count.now(self._context.replica.trained_examples) + examples
        dense = self._settings.schedule.factor(last)
        warm = warmup_factor(last, self._context.job.rows_warmup_examples)
        return dense, warm * (dense if self._settings.schedule.tables else 1.0)

    def _result(self, step: Step) -> StepResult | None:
        assert step.pending is not None
        result = step.pending.wait()
        if math.isfinite(result.loss):
            return result
        step.left_out = STEP_NOT_FINITE
        return None


def _losses_of_others(logits: Float32Array, delivery: Delivery) -> tuple[float, ...]:
    """Return the mean log loss of each further label, by logits [B, T]."""
    weights = _weights(delivery)
    host = None if weights is None else torch.tensor(weights)
    each = zip(logits.T[1:], delivery.other_labels, strict=True)
    return tuple(
        float(mean_log_loss(torch.tensor(logit), torch.tensor(label), host)) for logit, label in each
    )


def _weights(delivery: Delivery) -> Float32Array | None:
    return delivery.weights if len(delivery.weights) else None
