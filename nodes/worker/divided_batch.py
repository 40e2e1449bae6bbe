"""A batch cut into micro-batches, with a dense update for each."""

from __future__ import annotations

from itertools import pairwise

import torch

from ...pipeline.types import Float32Array
from ..replica.device import Computed, Staged


class DividedBatch:
    """A staged batch in micro-batches, with their results so far.

    Let W be the number of the batch's examples, or the sum of their sample weights, and W_p the same for
    micro-batch p. The loss is `sum of W_p / W * l_p` over the micro-batches' mean losses l_p. The embeddings'
    gradients are the gradients of that sum, with the dense parameters as they are at each micro-batch. If the
    parameters did not change in between, these would be the gradients of the whole batch. A micro-batch whose
    weights are all 0 has no share.

    Used by the worker thread that trains the batch, on its stream.

    Args:
        weights: the batch's sample weights, float32 [B], on the host; None for none.
        micro_batches: number of micro-batches; at most one per example is made.
    """

    def __init__(self, staged: Staged, weights: Float32Array | None, micro_batches: int) -> None:
        self._staged = staged
        examples = len(staged.labels)
        micro_batches = min(micro_batches, examples)
        edges = [examples * number // micro_batches for number in range(micro_batches + 1)]
        self._bounds = list(pairwise(edges))
        self._shares = _shares(self._bounds, weights)
        self._gradients: list[torch.Tensor] = []
        self._done: list[Computed] = []
        self._micro_batch = staged

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches."""
        return len(self._bounds)

    def next(self) -> Staged:
        """Return the next micro-batch; its leaves are the embeddings, of `examples` examples each."""
        if not self._done:
            # Not earlier: memory belongs to the stream on which it is first allocated.
            self._gradients = [torch.zeros_like(table) for table in self._staged.embeddings]
        start, stop = self._bounds[len(self._done)]
        whole = self._staged
        # A separate leaf: the backward pass of a slice would fill a block for the whole table each time.
        leaves = [table.detach()[start:stop].requires_grad_() for table in whole.embeddings]
        self._micro_batch = Staged(
            labels=whole.labels[start:stop],
            weights=None if whole.weights is None else whole.weights[start:stop],
            dense=whole.dense[start:stop],
            embeddings=leaves,
            leaves=leaves,
            lengths={table: of_table[start:stop] for table, of_table in whole.lengths.items()},
        )
        return self._micro_batch

    def add(self, computed: Computed) -> None:
        """Add the results of the last returned micro-batch, after its backward pass."""
        number = len(self._done)
        start, stop = self._bounds[number]
        for gradient, leaf in zip(self._gradients, self._micro_batch.leaves, strict=True):
            if leaf.grad is not None:
                torch.mul(leaf.grad, self._shares[number], out=gradient[start:stop])
        self._done.append(computed)

    def whole(self) -> Computed:
        """Return the results of the whole batch, once all micro-batches are added.

        The norm is the largest of the micro-batches' norms.
        """
        losses = [step.loss * share for step, share in zip(self._done, self._shares, strict=True)]
        return Computed(
            loss=torch.stack(losses).sum(),
            norm=torch.stack([step.norm for step in self._done]).max(),
            logits=torch.cat([step.logits for step in self._done]),
            gradients=self._gradients,
        )


def _shares(bounds: list[tuple[int, int]], weights: Float32Array | None) -> list[float]:
    if weights is None:
        sums = [float(stop - start) for start, stop in bounds]
    else:
        sums = [float(weights[start:stop].sum(dtype="float64")) for start, stop in bounds]
    total = sum(sums)
    return [count / total if total else 0.0 for count in sums]
