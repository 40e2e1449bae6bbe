"""Optimizers on the flat buffer: torch's fused ones, with one state that all workers of a trainer share.

They are called by torch's functional interface. The classes of `torch.optim` import torch's compiler when
the first one is made, which costs every trainer more than a second at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam

from ..config.job import TrainerSection

ADAGRAD_EPS = 1e-10
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8


@dataclass(frozen=True)
class WorkerOptimizer:
    """One worker's way to update the shared flat buffer from its own flat gradient.

    `step` updates the buffer and the state in place, lock-free; only the worker's thread calls it.
    """

    step: Callable[[], object]


class SharedOptimizer:
    """The optimizer state of one trainer (contract 2); `for_worker` gives each worker its stepper.

    The state is float32 tensors as long as the replica, and the step count; workers update them lock-free,
    as they do the replica. SGD has no state; Adagrad (Duchi, Hazan, Singer, JMLR 2011) the sum of squares,
    `sum`; Adam (Kingma and Ba, arXiv 1412.6980, Algorithm 1) both moments, `exp_avg` and `exp_avg_sq`.
    """

    def __init__(self, settings: TrainerSection, flat: torch.Tensor) -> None:
        self._settings = settings
        self._flat = flat
        names = {"sgd": (), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}[settings.optimizer]
        self.state: dict[str, torch.Tensor] = {name: torch.zeros_like(flat) for name in names}
        if self.state:
            self.state["step"] = torch.zeros((), dtype=torch.float32)

    def for_worker(self, gradient: torch.Tensor) -> WorkerOptimizer:
        """A stepper that reads the worker's flat `gradient`, float32 [numel]."""
        steps = {"sgd": self._sgd, "adagrad": self._adagrad, "adam": self._adam}
        step = steps[self._settings.optimizer]
        return WorkerOptimizer(lambda: step(gradient))

    def _sgd(self, gradient: torch.Tensor) -> None:
        self._flat.add_(gradient, alpha=-self._settings.lr)

    def _adagrad(self, gradient: torch.Tensor) -> None:
        adagrad(
            [self._flat],
            [gradient],
            [self.state["sum"]],
            [self.state["step"]],
            fused=True,
            foreach=False,
            lr=self._settings.lr,
            weight_decay=0.0,
            lr_decay=0.0,
            eps=ADAGRAD_EPS,
            maximize=False,
        )

    def _adam(self, gradient: torch.Tensor) -> None:
        adam(
            [self._flat],
            [gradient],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [self.state["step"]],
            fused=True,
            foreach=False,
            amsgrad=False,
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            lr=self._settings.lr,
            weight_decay=0.0,
            eps=ADAM_EPS,
            maximize=False,
        )
