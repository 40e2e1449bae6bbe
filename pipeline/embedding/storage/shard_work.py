"""The vectors of bags, summed where their rows are."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from ...types import Float32Array, Int32Array


def sum_bags(weights: torch.Tensor, rows: Int32Array, lengths: Int32Array, out: Float32Array) -> None:
    """Sums the rows of each bag, in their order; an empty bag gives zeros.

    Args:
        weights: float32 [rows, dim], contiguous.
        rows: int32 [N], all of them in range, bag after bag.
        lengths: int32 [...]: how many rows each bag has; N in all.
        out: float32, C-contiguous, a vector of dim for each bag.

    The thread that owns the weights may call it.
    """
    if not len(rows):
        out.fill(0.0)
        return
    if not rows.flags.writeable:
        # torch has no read-only tensors, and a received frame is one.
        rows = rows.copy()
    flat = lengths.reshape(-1)
    starts = np.zeros(len(flat), np.int32)
    np.cumsum(flat[:-1], out=starts[1:])
    sums = embedding_bag(torch.from_numpy(rows), weights, torch.from_numpy(starts), mode="sum")
    out.reshape(sums.shape)[...] = sums.numpy()
