"""Tensors over memory that came from elsewhere: arrays, tensors, or the buffers of received messages."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32] | torch.Tensor | memoryview | bytearray | bytes
"""Floats one after the other, of any shape: C-contiguous, 4-byte aligned."""


def flat_floats(values: Floats, count: int, what: str) -> torch.Tensor:
    """A float32 tensor [count] on the memory of `values`, copied only if that is read-only.

    Any thread may call this; `what` names the values in the ValueError that another size or type raises.
    """
    wanted = f"{count} of float32, C-contiguous"
    if isinstance(values, torch.Tensor):
        if values.dtype != torch.float32 or values.numel() != count or not values.is_contiguous():
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {wanted}")
        return values.detach().view(-1)
    if isinstance(values, np.ndarray):
        if values.dtype != np.float32 or values.size != count or not values.flags.c_contiguous:
            raise ValueError(f"{what}: {values.dtype} {list(values.shape)}, not {wanted}")
        array = values.reshape(-1)
    else:
        view = memoryview(values)
        if view.nbytes != count * 4:
            raise ValueError(f"{what}: {view.nbytes} bytes, not {count * 4} for {wanted}")
        array = np.frombuffer(view, np.float32)
    # torch has no read-only tensors, and numpy's buffers over `bytes` are.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
