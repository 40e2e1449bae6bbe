"""A batch cut into micro-batches, with a dense update for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ...pipeline.models.sequences import Embeddings, with_lengths
from ...pipeline.types import Float32Array, IndexArray


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

    def slice(self, start: int, stop: int, vectors: Sequence[slice]) -> ModelInputs:
        """Return some of the examples; the leaves are their embeddings, of each table these vectors.

        These are separate leaves: the backward pass of a slice would fill a block for the whole table.
        """
        leaves = [
            table.detach()[of_table].requires_grad_()
            for table, of_table in zip(self.embeddings, vectors, strict=True)
        ]
        return ModelInputs(
            self.labels[start:stop],
            None if self.weights is None else self.weights[start:stop],
            self.dense[start:stop],
            leaves,
            {table: of_table[start:stop] for table, of_table in self.lengths.items()},
            leaves,
            None if self.groups is None else self.groups[:, start:stop],
            None if self.log_frequency is None else self.log_frequency[start:stop],
            None if self.negatives is None else self.negatives[start:stop],
        )


class DividedBatch:
    """The examples of each micro-batch of a batch, and their shares.

    Let W be the number of the batch's examples, or the sum of their sample weights, and W_p the same for
    micro-batch p. The loss is `sum of W_p / W * l_p` over the micro-batches' mean losses l_p. The embeddings'
    gradients are the gradients of that sum, with the dense parameters as they are at each micro-batch. If the
    parameters did not change in between, these would be the gradients of the whole batch. A micro-batch whose
    weights are all 0 has no share.

    Args:
        examples: number of the batch's examples.
        weights: the batch's sample weights, float32 [B], on the host; None for none.
        micro_batches: number of micro-batches; at most one per example is made.

    Attributes:
        bounds: first example of each micro-batch, and the one after its last.
        shares: `W_p / W` of each.
        ends: of each jagged table where the examples begin and end among its vectors, int64 [B + 1].
    """

    def __init__(self, examples: int, weights: Float32Array | None, micro_batches: int) -> None:
        micro_batches = min(micro_batches, examples)
        edges = [examples * number // micro_batches for number in range(micro_batches + 1)]
        self.bounds = list(pairwise(edges))
        self.shares = _shares(self.bounds, weights)
        self.ends: Mapping[int, IndexArray] = {}


class MicroBatches:
    """The micro-batches of a batch on its device, with their results so far.

    Used by the worker thread that trains the batch, on its stream.

    Args:
        inputs: those of the whole batch.
        divided: the micro-batches.
        shares: numbers, or scalars on the device.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        divided: DividedBatch,
        shares: Sequence[float | torch.Tensor],
    ) -> None:
        self._inputs, self._shares = inputs, list(shares)
        self._bounds, self._ends = iter(divided.bounds), divided.ends
        self._gradients = [torch.zeros_like(table) for table in inputs.embeddings]
        self._parts: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[ModelInputs]:
        return self

    def __next__(self) -> ModelInputs:
        start, stop = next(self._bounds)
        self._vectors = [self._vectors_of(table, start, stop) for table in range(len(self._gradients))]
        self._micro_batch = self._inputs.slice(start, stop, self._vectors)
        return self._micro_batch

    def add(self, loss: torch.Tensor, norm: torch.Tensor, logits: torch.Tensor) -> None:
        """Add the results of the last micro-batch, after its backward pass."""
        share = self._shares[len(self._losses)]
        leaves = self._micro_batch.leaves
        for gradient, leaf, vectors in zip(self._gradients, leaves, self._vectors, strict=True):
            if leaf.grad is not None:
                torch.mul(leaf.grad, share, out=gradient[vectors])
        self._losses.append(loss * share)
        self._norms.append(norm)
        self._parts.append(logits)

    def _vectors_of(self, table: int, start: int, stop: int) -> slice:
        """Return where a table has the vectors of these examples."""
        ends = self._ends.get(table)
        return slice(start, stop) if ends is None else slice(int(ends[start]), int(ends[stop]))

    def whole(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return loss, norm and logits of the whole batch, and carry its gradients on to the replies.

        The norm is the largest of the micro-batches' norms.
        """
        torch.autograd.backward(self._inputs.embeddings, self._gradients)
        return torch.stack(self._losses).sum(), torch.stack(self._norms).max(), torch.cat(self._parts)


def _shares(bounds: list[tuple[int, int]], weights: Float32Array | None) -> list[float]:
    if weights is None:
        sums = [float(stop - start) for start, stop in bounds]
    else:
        sums = [float(weights[start:stop].sum(dtype="float64")) for start, stop in bounds]
    total = sum(sums)
    return [count / total if total else 0.0 for count in sums]
