"""Hugging Face's Trainer: loop INDEX of 2, which meets the other at a hub.

pip install 'shadowsync[transformers]' scikit-learn
shadowsync hub                                                     # prints tcp://HOST:PORT
python examples/attached/transformers_digits.py 0 tcp://HOST:PORT &
python examples/attached/transformers_digits.py 1 tcp://HOST:PORT
"""

from __future__ import annotations

import sys
import tempfile

import torch
from digits import LOOPS, accuracy, digits, small_model
from shadowsync.attached.transformers import ShadowSyncCallback
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments


class Digits(nn.Module):
    """A classifier of 8 x 8 images, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small_model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the logits of a batch."""
        logits = self.model(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples(data: TensorDataset) -> list[dict[str, torch.Tensor]]:
    """Return a data set as the Trainer takes it."""
    return [{"x": x, "labels": y} for x, y in zip(*data.tensors, strict=True)]


def main(index: int, hub: str) -> None:
    """Train loop `index`."""
    train, test = digits(index)
    model = Digits()
    before = accuracy(model.model, test)
    sync = ShadowSyncCallback(join=hub, wait_for=LOOPS)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                output_dir=folder,
                num_train_epochs=8,
                per_device_train_batch_size=32,
                learning_rate=0.01,
                eval_strategy="epoch",
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=examples(train),
            eval_dataset=examples(test),
            callbacks=[sync],
        )
        trainer.train()
    center = sync.sync.model()
    print(f"accuracy before {before:.3f}, of the center {accuracy(center.model, test):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
