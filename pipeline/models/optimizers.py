"""Optimizers on the flat buffer: torch's fused ones, with one state that all workers of a trainer share."""

from __future__ import annotations

from typing import Any

import torch

from ..config.job import TrainerSection


class SharedOptimizer:
    """The optimizer state of one trainer (contract 2); `for_worker` gives each worker its stepper.

    The state is float32 tensors as long as the replica, and the step count; workers update them lock-free,
    as they do the replica. SGD has no state; Adagrad the sum of squares; Adam (Kingma and Ba, arXiv
    1412.6980) both moments.
    """

    def __init__(self, settings: TrainerSection, flat: torch.Tensor) -> None:
        self._settings = settings
        self._flat = flat
        template = self._make(torch.nn.Parameter(flat.detach()))
        parameter = template.param_groups[0]["params"][0]
        parameter.grad = torch.zeros_like(flat)
        if settings.optimizer == "adam":
            # Adam makes its state in the first step; one with a zero gradient and rate changes nothing.
            template.param_groups[0]["lr"] = 0.0
            template.step()
            template.state[parameter]["step"].zero_()
        self.state: dict[str, torch.Tensor] = {
            key: value for key, value in template.state[parameter].items() if isinstance(value, torch.Tensor)
        }

    def for_worker(self, gradient: torch.Tensor) -> torch.optim.Optimizer:
        """An optimizer over the shared buffer and state that reads the worker's flat `gradient`."""
        parameter = torch.nn.Parameter(torch.empty(0))
        parameter.data = self._flat
        parameter.grad = gradient
        optimizer = self._make(parameter)
        optimizer.state[parameter] = dict(self.state)
        return optimizer

    def _make(self, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        makers: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "adagrad": torch.optim.Adagrad,
            "adam": torch.optim.Adam,
        }
        optimizer: torch.optim.Optimizer = makers[self._settings.optimizer](
            [parameter], lr=self._settings.lr, fused=True
        )
        return optimizer
