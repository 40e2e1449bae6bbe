"""Transfer of weights and optimizer to a joining trainer.

An optimizer without a history would take steps that are far too large.
"""

from __future__ import annotations

import numpy as np
import torch

from ..replica.replica import TrainerContext


def optimizer_sizes(shared: TrainerContext) -> tuple[tuple[str, int], ...]:
    """Return the names of the optimizer's state, and how many elements each has."""
    return tuple((name, values.numel()) for name, values in shared.optimizer.state.items())


def read_state(shared: TrainerContext, name: str, start: int, stop: int) -> bytes:
    """Read elements of an optimizer state, or of the weights.

    Workers may write meanwhile. Any thread may call. Raises ValueError for a name that there is not.
    """
    if not name:
        return shared.replica.read(start, stop).numpy().tobytes()
    return _state(shared, name)[start:stop].cpu().numpy().tobytes()


def write_state(shared: TrainerContext, name: str, start: int, values: bytes) -> None:
    """Write elements that `read_state` of another trainer returned, before training begins.

    Raises ValueError for what does not fit.
    """
    target = _state(shared, name) if name else shared.replica.flat
    given = torch.from_numpy(np.frombuffer(values, dtype=np.float32).copy())
    if start + len(given) > len(target):
        what = name or "replica"
        raise ValueError(f"{what}: {len(given)} elements from {start} given; it has {len(target)}")
    target[start : start + len(given)].copy_(given)


def _state(shared: TrainerContext, name: str) -> torch.Tensor:
    if name not in shared.optimizer.state:
        raise ValueError(f"the optimizer has no state {name!r}")
    return shared.optimizer.state[name].view(-1)
