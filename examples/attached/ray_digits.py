"""Ray Train: 2 workers, which synchronize at a hub instead of by DDP.

    pip install 'ray[train]' scikit-learn
    shadowsync hub                                                     # prints tcp://HOST:PORT
    python examples/attached/ray_digits.py tcp://HOST:PORT

Ray Train restarts all of its workers if one dies. They join anew, and take the weights of the center, as long
as the hub is there.
"""

from __future__ import annotations

import sys
from typing import Any

import ray.train
import shadowsync
import torch
from digits import LOOPS, accuracy, digits, small_model
from ray.train.torch import TorchTrainer
from torch.nn import functional
from torch.utils.data import DataLoader


def train_loop(config: dict[str, Any]) -> None:
    """Train the part of this worker.

    There is no `prepare_model`, which would make it DDP.
    """
    index = ray.train.get_context().get_world_rank()
    train, test = digits(index)
    model = small_model()
    before = accuracy(model, test)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    with shadowsync.attach(model, optimizer, join=config["hub"], wait_for=LOOPS) as sync:
        for _ in range(8):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    print(f"accuracy before {before:.3f}, of the center {accuracy(sync.model(), test):.3f}")


def main(hub: str) -> None:
    """Train on a Ray cluster of this machine, or the one that $RAY_ADDRESS names."""
    scaling = ray.train.ScalingConfig(num_workers=LOOPS)
    TorchTrainer(train_loop, train_loop_config={"hub": hub}, scaling_config=scaling).fit()


if __name__ == "__main__":
    main(sys.argv[1])
