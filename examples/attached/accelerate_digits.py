"""Accelerate: loop INDEX of 2, which synchronizes with the other at a hub.

pip install accelerate scikit-learn
shadowsync hub                                                     # prints tcp://HOST:PORT
python examples/attached/accelerate_digits.py 0 tcp://HOST:PORT &
python examples/attached/accelerate_digits.py 1 tcp://HOST:PORT
"""

from __future__ import annotations

import sys

import shadowsync
import torch
from accelerate import Accelerator
from digits import LOOPS, accuracy, digits, small_model
from torch.nn import functional
from torch.utils.data import DataLoader


def main(index: int, hub: str) -> None:
    """Train loop `index`."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train, test = digits(index)
    model = small_model()
    before = accuracy(model, test)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(train, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with shadowsync.attach(accelerator.unwrap_model(model), optimizer, join=hub, wait_for=LOOPS) as sync:
        for _ in range(8):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(functional.cross_entropy(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
    print(f"accuracy before {before:.3f}, of the center {accuracy(sync.model(), test):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
