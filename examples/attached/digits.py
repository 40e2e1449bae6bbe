"""Scikit-learn's 1,797 handwritten digits, and a small model, for the loops in this folder."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

LOOPS = 2
TEST = 360


def digits(index: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the training images of loop `index`, and all test images."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[TEST:][index::LOOPS], order[:TEST]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def small_model() -> nn.Module:
    """Return two layers; its first values are the same in each loop."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Return the share of the test images that the model knows."""
    x, y = test.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())
