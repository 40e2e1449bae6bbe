"""A batch cut into parts, with a dense update for each."""

from __future__ import annotations

import torch

from ...pipeline.types import Float32Array
from ..replica.device import Computed, Staged


class DividedBatch:
    """A staged batch in parts, and what they gave so far.

    With W the batch's examples, or the sum of their sample weights, and W_p those of part p, its loss is
    `sum of W_p / W * l_p` over the mean losses of the parts, and the gradients of embeddings are those of
    that sum, each part's with the dense parameters of its own moment. So with parameters that do not change
    meanwhile they are the whole batch's. A part whose weights are all 0 has a share of 0.

    Used by the worker thread that trains the batch, on its stream.

    Args:
        weights: the batch's sample weights, float32 [B], on the host; None for none.
        parts: as many, but no more than there are examples.
    """

    def __init__(self, staged: Staged, weights: Float32Array | None, parts: int) -> None:
        self._staged = staged
        examples = len(staged.labels)
        parts = min(parts, examples)
        self._bounds = [(examples * at // parts, examples * (at + 1) // parts) for at in range(parts)]
        self._shares = _shares(self._bounds, weights)
        self._gradients: list[torch.Tensor] = []
        self._done: list[Computed] = []
        self._part = staged

    @property
    def parts(self) -> int:
        """Return the number of parts."""
        return len(self._bounds)

    def next(self) -> Staged:
        """Return the next part; its leaves are embeddings, [examples, K_t] each."""
        if not self._done:
            # Not earlier: memory belongs to the stream on which it was first asked for.
            self._gradients = [torch.zeros_like(table) for table in self._staged.embeddings]
        start, stop = self._bounds[len(self._done)]
        whole = self._staged
        # A leaf of its own: the backward pass of a slice would fill a block for the whole table each time.
        leaves = [table.detach()[start:stop].requires_grad_() for table in whole.embeddings]
        self._part = Staged(
            labels=whole.labels[start:stop],
            weights=None if whole.weights is None else whole.weights[start:stop],
            dense=whole.dense[start:stop],
            embeddings=leaves,
            leaves=leaves,
        )
        return self._part

    def add(self, computed: Computed) -> None:
        """Add what the part that was returned last gave, after its backward pass."""
        at = len(self._done)
        start, stop = self._bounds[at]
        for gradient, leaf in zip(self._gradients, self._part.leaves, strict=True):
            if leaf.grad is not None:
                torch.mul(leaf.grad, self._shares[at], out=gradient[start:stop])
        self._done.append(computed)

    def whole(self) -> Computed:
        """Return the results of the whole batch, once all parts are added.

        Its norm is the largest of the parts'.
        """
        losses = [part.loss * share for part, share in zip(self._done, self._shares, strict=True)]
        return Computed(
            loss=torch.stack(losses).sum(),
            norm=torch.stack([part.norm for part in self._done]).max(),
            logits=torch.cat([part.logits for part in self._done]),
            gradients=self._gradients,
        )


def _shares(bounds: list[tuple[int, int]], weights: Float32Array | None) -> list[float]:
    if weights is None:
        sums = [float(stop - start) for start, stop in bounds]
    else:
        sums = [float(weights[start:stop].sum(dtype="float64")) for start, stop in bounds]
    total = sum(sums)
    return [part / total if total else 0.0 for part in sums]
