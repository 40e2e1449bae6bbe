"""Training and scoring steps of a worker."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ...pipeline.config.trainer import warmup_factor
from ...pipeline.data.batch import label_columns
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.embedding.lookup.vectors import BatchEmbeddings
from ...pipeline.errors import ProtocolError
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.models.flat import BFloat16Weights, GradientWatch
from ...pipeline.models.layers import clip_, mean_log_loss
from ...pipeline.models.loss import TrainingLoss
from ...pipeline.types import Float32Array
from ...pipeline.wire.messages import Delivery
from ..replica.device import Computed, PendingResult, Staged, StepResult
from ..replica.replica import MicroBatchCounts, TrainerContext
from .divided_batch import DividedBatch

LOSS_NOT_FINITE = "its loss is not finite"
DENSE_NOT_FINITE = "a gradient of its dense parameters is not finite"
EMBEDDINGS_NOT_FINITE = "a gradient of its embeddings is not finite"
STEP_NOT_FINITE = "its loss or a gradient is not finite"


@dataclass(slots=True)
class Step:
    """A training step in progress.

    Attributes:
        dense_scale: factor for the learning rate of the dense parameters.
        rows_scale: factor for the learning rates of the embedding rows for this batch.
        divided: its micro-batches, if it is cut.
        updates: number of dense updates made from it so far.
        computed: results to fetch from the device; None until computed.
        bad: on a device, a scalar that is true if a number is not finite.
        used: which parameters have a gradient, see `GradientWatch`; None for all.
        pending: results in flight from the device; None for a batch that is left out.
        left_out: why the batch changes nothing; empty if it trains. Known after the launch if no step is
            launched ahead, otherwise after the finish.
        other_losses: mean log loss of each further label before the update, once finished; as that of the
            first, which `Stepper.finish` returns.
    """

    delivery: Delivery
    vectors: BatchEmbeddings
    staged: Staged
    dense_scale: float = 1.0
    rows_scale: float = 1.0
    divided: DividedBatch | None = None
    updates: int = 0
    computed: Computed | None = None
    bad: torch.Tensor | None = None
    used: tuple[bool, ...] | None = None
    pending: PendingResult | None = None
    left_out: str = ""
    other_losses: tuple[float, ...] = ()

    @property
    def micro_batches(self) -> int:
        """Number of dense updates that the whole batch makes."""
        return 1 if self.divided is None else self.divided.micro_batches

    @property
    def is_computing(self) -> bool:
        """Whether there is something left to compute."""
        return not self.left_out and self.updates < self.micro_batches


class Stepper:
    """A worker's modules, with shared parameters and its own gradients.

    Owned by one worker thread. A step is staged, launched and finished; on a GPU only `finish` waits for the
    device, so that a worker may launch `ahead` further steps before it finishes one.

    A batch changes nothing if its loss or gradients are NaN or infinite, or so large that their squares are.
    On the host it is left out before the update. On a device the enqueued update then does nothing, since the
    host does not wait for the check.

    If a batch is cut, each micro-batch in turn makes an update at the full rate, with the gradient of its
    own mean loss. A non-finite one and those after it change nothing, and the batch changes no embedding
    row; the dense updates of earlier ones stay.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._settings = context.job.trainer
        self._label_count = len(context.job.data.label_names)
        self._loss = TrainingLoss(context.job.model, context.job.data.loss_weights)
        self.ahead = 0 if context.job.run.deterministic else context.device.steps_ahead
        device = context.device.torch_device
        self._gradient = torch.zeros(context.layout.numel, dtype=torch.float32, device=device)
        self._no_norm = torch.zeros((), device=device)
        self._module = self._copy_of_template()
        self._rounded: BFloat16Weights | None = None
        if context.precision == "bfloat16":
            self._rounded = BFloat16Weights(
                context.layout, self._module, context.replica.flat, self._gradient
            )
        else:
            context.layout.attach(self._module, context.replica.flat, self._gradient)
        self._watch = GradientWatch(context.layout, self._module)
        self._module.train()
        self._optimizer = context.optimizer.for_worker(self._gradient)
        self._scorer = self._copy_of_template()
        self._scorer.eval()
        self._stream = context.device.open_stream()
        self._micro_batches = MicroBatchCounts(context.micro_batches)
        self.clipped_steps = 0

    def _copy_of_template(self) -> nn.Module:
        context = self._context
        module = copy.deepcopy(context.template).to(context.device.torch_device)
        context.constants.attach(module)
        return module

    def stage(
        self, delivery: Delivery, requests: Sequence[LookupPlan], replies: Sequence[Float32Array]
    ) -> Step:
        """Start copying a batch to the device, cut into micro-batches.

        `replies` must not change until `finish`.
        """
        vectors = self._context.router.assemble(requests, list(replies))
        step = Step(delivery, vectors, self._stage(delivery, vectors))
        micro_batches = self._micro_batches.next()
        if micro_batches > 1:
            step.divided = DividedBatch(step.staged, _weights(delivery), micro_batches)
        return step

    def launch(self, step: Step) -> None:
        """Run forward, backward and the lock-free update of each micro-batch.

        A batch with non-finite numbers makes no update.
        """
        with self._stream.computing(step.staged):
            while step.is_computing:
                self.compute(step)
                if not step.left_out:
                    self.update(step)

    def compute(self, step: Step) -> None:
        """Run forward and backward of the next micro-batch, the first half of `launch`.

        An emulation of a step's time waits between this and `update`.
        """
        if not step.updates:
            step.dense_scale, step.rows_scale = self._rate_scales(len(step.delivery.labels))
        inputs = step.staged if step.divided is None else step.divided.next()
        if self._rounded is not None:
            self._rounded.refresh()
        with self._precision():
            logits = self._module(inputs.dense, inputs.model_embeddings)
        logits = logits.float()
        loss, log_loss = self._losses(logits, inputs)
        if not self.ahead and not math.isfinite(loss.detach()):
            step.left_out = LOSS_NOT_FINITE
            return
        self._backward(loss)
        step.used = self._watch.used()
        reported_loss = self._check_finite(step, inputs.leaves or step.vectors.leaves, log_loss)
        if step.left_out:
            return
        limit = self._settings.clip_norm
        norm = self._no_norm if limit is None else clip_(self._gradient, limit)
        step.computed = Computed(reported_loss, norm, logits.detach())

    def update(self, step: Step) -> None:
        """Update the shared replica with the last computed gradient.

        A replay makes no update, since it has made its updates before. After the last one, the results are
        fetched.
        """
        assert step.computed is not None
        if not step.delivery.replay:
            self._optimizer.step(step.dense_scale, step.bad, step.used)
        step.updates += 1
        if step.divided is not None:
            step.divided.add(step.computed)
            if step.is_computing:
                return
            step.computed = step.divided.whole()
        step.pending = self._stream.fetch(step.staged, step.computed)

    def finish(self, step: Step, progressive: QualitySums | None = None) -> tuple[float, list[Float32Array]]:
        """Wait for the step's results; return its loss and each embedding node's gradients.

        The loss is the batch's mean log loss of the first label before the update, weighted if the job has
        sample weights, with the logits of true probabilities where the job weights positives. The gradients
        are those of the mean loss that the job minimizes, float32 [N, dim]. For a batch that is left out
        (`step.left_out`) the loss is 0, without gradients. The logits before the update, likewise of true
        probabilities, are added to `progressive` if given. If the batch is cut, "before the update" is before
        each micro-batch's own update.
        """
        result = None if step.left_out else self._result(step)
        if result is None:
            return 0.0, []
        limit = self._settings.clip_norm
        self.clipped_steps += limit is not None and result.norm > limit
        if progressive is not None or self._label_count > 1:
            logits = result.logits + np.float32(self._loss.logit_offset)
            if self._label_count > 1:
                step.other_losses = _losses_of_others(logits, step.delivery)
            if progressive is not None:
                progressive.add(logits, self._labels(step.delivery), _weights(step.delivery))
        return result.loss, self._gradients(step, result)

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
        sums: QualitySums,
    ) -> None:
        """Add the batch's logits and labels to `sums`, without changing a weight.

        Computes in float32, whatever the precision of training. The logits are calibrated where negatives
        were left out of training.
        """
        with torch.no_grad():
            vectors = self._context.router.assemble(requests, list(replies))
            staged = self._stage(delivery, vectors)
            with self._stream.computing(staged):
                logits = self._scorer(staged.dense, staged.model_embeddings)
                pending = self._stream.fetch(staged, Computed(self._no_norm, self._no_norm, logits))
        offset = np.float32(self._context.job.logit_offset)
        sums.add(pending.wait().logits + offset, self._labels(delivery), _weights(delivery))

    def _losses(self, logits: torch.Tensor, inputs: Staged) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss to minimize and, without a graph, the log loss to report.

        That of the first label, if there are several.
        """
        if self._loss.is_plain:
            loss = mean_log_loss(logits, inputs.labels, inputs.weights)
            return loss, loss.detach()
        calibrated, labels = logits.detach() + self._loss.logit_offset, inputs.labels
        if labels.ndim > 1:
            calibrated, labels = calibrated[:, 0], labels[:, 0]
        reported = mean_log_loss(calibrated, labels, inputs.weights)
        return self._loss.mean(logits, inputs.labels, inputs.weights), reported

    def _stage(self, delivery: Delivery, vectors: BatchEmbeddings) -> Staged:
        labels, weights = self._labels(delivery), _weights(delivery)
        return self._stream.stage(labels, weights, delivery.dense, vectors.embeddings, vectors.lengths)

    def _labels(self, delivery: Delivery) -> Float32Array:
        others, examples = self._label_count - 1, len(delivery.labels)
        if delivery.other_labels.shape != ((others, examples) if others else (0, 0)):
            raise ProtocolError(
                f"batch {delivery.id} has other labels of shape {delivery.other_labels.shape}; the job has"
                f" {self._label_count} labels, and the batch {examples} examples"
            )
        return label_columns(delivery.labels, delivery.other_labels)

    def _precision(self) -> AbstractContextManager[object]:
        if self._rounded is None:
            return nullcontext()
        return torch.autocast(self._context.device.torch_device.type, dtype=torch.bfloat16)

    def _rate_scales(self, examples: int) -> tuple[float, float]:
        """Return the factors of the dense and row learning rates."""
        last = self._context.count.now(self._context.replica.trained_examples) + examples
        dense = self._settings.schedule.factor(last)
        warm = warmup_factor(last, self._context.job.rows_warmup_examples)
        return dense, warm * (dense if self._settings.schedule.tables else 1.0)

    def _backward(self, loss: torch.Tensor) -> None:
        """Compute the flat gradient of the loss, and the embeddings' gradients."""
        if self._rounded is None:
            self._gradient.zero_()
        else:
            self._rounded.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._rounded is not None:
            self._rounded.collect()

    def _check_finite(self, step: Step, leaves: Sequence[torch.Tensor], loss: torch.Tensor) -> torch.Tensor:
        """Check that the gradients' squares are finite, and the loss on a device.

        On the host the result is `step.left_out`. On a device it is `step.bad`, true from the first
        non-finite micro-batch on. Returns the loss to report, which is then NaN.
        """
        # Squares, because optimizers keep those: 1e20 is finite, but its float32 square is not.
        dense = self._gradient.dot(self._gradient)
        flat = [leaf.grad.flatten() for leaf in leaves if leaf.grad is not None]
        rows = [gradient.dot(gradient) for gradient in flat]
        if self.ahead:
            bad = ~torch.isfinite(torch.stack([loss, dense, *rows])).all()
            step.bad = bad if step.bad is None else step.bad | bad
            return loss.masked_fill(step.bad, math.nan)
        if not math.isfinite(dense):
            step.left_out = DENSE_NOT_FINITE
        elif not all(math.isfinite(square) for square in rows):
            step.left_out = EMBEDDINGS_NOT_FINITE
        return loss

    def _result(self, step: Step) -> StepResult | None:
        assert step.pending is not None
        result = step.pending.wait()
        if math.isfinite(result.loss):
            return result
        step.left_out = STEP_NOT_FINITE
        return None

    def _gradients(self, step: Step, result: StepResult) -> list[Float32Array]:
        if result.gradients is not None:
            torch.autograd.backward(step.vectors.embeddings, result.gradients)
        return step.vectors.gradients()


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
