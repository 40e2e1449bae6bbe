"""Lightning: loop INDEX of 2, which synchronizes with the other at a hub.

pip install 'shadowsync[lightning]' scikit-learn
shadowsync hub                                                     # prints tcp://HOST:PORT
python examples/attached/lightning_digits.py 0 tcp://HOST:PORT &
python examples/attached/lightning_digits.py 1 tcp://HOST:PORT
"""

from __future__ import annotations

import sys

import lightning.pytorch as pl
import torch
from digits import LOOPS, accuracy, digits, small_model
from shadowsync.attached.lightning import ShadowSyncCallback
from torch.nn import functional
from torch.utils.data import DataLoader


class Digits(pl.LightningModule):  # type: ignore[misc]
    """A classifier of 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small_model()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the accuracy."""
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer; attach leaves it as it is."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(index: int, hub: str) -> None:
    """Train loop `index`."""
    train, test = digits(index)
    module = Digits()
    before = accuracy(module.model, test)
    sync = ShadowSyncCallback(join=hub, wait_for=LOOPS)
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=1,
        callbacks=[sync],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=360))
    center = sync.sync.model()
    print(f"accuracy before {before:.3f}, of the center {accuracy(center.model, test):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
