"""Models of `attached_step.py`, each with the loss of one fixed batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from shadowsync.examples.other_areas.character_model import CONTEXT, CharacterModel, loss_of
from shadowsync.examples.other_areas.digits import small_network
from torch import nn

CHARACTERS: Final = 100
Made = tuple[nn.Module, Callable[[], torch.Tensor]]


def _classifier(model: nn.Module, inputs: torch.Tensor) -> Made:
    labels = torch.randint(10, (len(inputs),))
    return model, lambda: nn.functional.cross_entropy(model(inputs), labels)


def mlp() -> Made:
    """Return the model of the comparison with peers: 85 thousand parameters in 6 tensors."""
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return _classifier(nn.Sequential(*layers), torch.randn(64, 64))


def deep() -> Made:
    """Return ten small layers: little to compute, 22 tensors."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return _classifier(nn.Sequential(*layers, nn.Linear(64, 10)), torch.randn(64, 64))


def wide() -> Made:
    """Return 5 million parameters, a small batch: the step is bound by memory."""
    layers = (nn.Linear(512, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 1000))
    return _classifier(nn.Sequential(*layers), torch.randn(16, 512))


def convolution() -> Made:
    """Return the small vision model of the examples: 6 thousand parameters."""
    return _classifier(small_network(), torch.randn(16, 1, 8, 8))


def characters() -> Made:
    """Return the small language model of the examples: 80 thousand parameters in 30 tensors."""
    model = CharacterModel(CHARACTERS)
    windows = torch.randint(CHARACTERS, (8, CONTEXT + 1))
    return model, lambda: loss_of(model, windows)


MODELS: Final[Mapping[str, Callable[[], Made]]] = {
    "mlp": mlp,
    "deep": deep,
    "wide": wide,
    "convolution": convolution,
    "characters": characters,
}
