"""Optimizers on the flat buffer, with one state for all workers.

Adam, and Adagrad where possible, are torch's fused ones. They are called by torch's functional interface,
because the classes of `torch.optim` import torch's compiler, which would cost each trainer more than a second
at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam

from ..config.trainer import TrainerSection

ADAGRAD_EPS = 1e-10
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8

STATE_NAMES = {
    "sgd": (),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}


class WorkerOptimizer:
    """Update the shared flat buffer from one worker's flat gradient.

    Only the worker's thread may call.
    """

    def __init__(self, update: Callable[[float, torch.Tensor | None], object], lr: float) -> None:
        self._update = update
        self._lr = lr

    def step(self, scale: float = 1.0, bad: torch.Tensor | None = None) -> None:
        """Update the buffer and the state in place, without a lock.

        The learning rate is multiplied by `scale`. `bad` is a bool scalar on the buffer's device, whose value
        the host need not know. If it is true, neither the buffer nor the state changes, whatever the
        gradient; only Adagrad's step count does, which has no effect. The gradient may be overwritten.
        """
        self._update(self._lr * scale, bad)


class SharedOptimizer:
    """The optimizer state of one trainer; `for_worker` returns a worker's optimizer.

    The state is a step count and float32 tensors as long as the replica. Workers update them without locks,
    like the replica.

    - SGD has no state.
    - Adagrad (Duchi, Hazan, Singer, JMLR 2011) has the sum of squares, `sum`.
    - Adam (Kingma and Ba, arXiv 1412.6980, Algorithm 1) has both moments, `exp_avg` and `exp_avg_sq`.
    - AdamW (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2) has the same state. Its weight decay is
      decoupled; that of the others is L2.

    Results are those of `torch.optim` with the same settings.

    Args:
        settings: the section [trainer].
        flat: float32 [numel], on any device; the state is put there too.
        memory: float32 [K * numel], zeros, for the K tensors of the state; by default new memory.
    """

    def __init__(
        self, settings: TrainerSection, flat: torch.Tensor, memory: torch.Tensor | None = None
    ) -> None:
        self._settings = settings
        self._flat = flat
        self._fused_adagrad = flat.device.type == "cpu"
        # Fused Adam needs the step count on the device of the weights. Without decay of the learning rate
        # Adagrad's step count has no effect.
        step_device = torch.device("cpu") if settings.optimizer == "adagrad" else flat.device
        names = STATE_NAMES[settings.optimizer]
        if memory is None:
            memory = flat.new_zeros(len(names) * flat.numel())
        self.state: dict[str, torch.Tensor] = dict(
            zip(names, memory.view(len(names), flat.numel()), strict=True)
        )
        if self.state:
            self.state["step"] = torch.zeros((), dtype=torch.float32, device=step_device)

    def for_worker(self, gradient: torch.Tensor) -> WorkerOptimizer:
        """Return an optimizer that reads the worker's flat `gradient`, float32 [numel]."""
        steps = {"sgd": self._sgd, "adagrad": self._adagrad, "adam": self._adam, "adamw": self._adamw}
        return WorkerOptimizer(partial(steps[self._settings.optimizer], gradient), self._settings.lr)

    def _decay(self, lr: float, bad: torch.Tensor | None) -> None:
        factor = 1.0 - lr * self._settings.weight_decay
        if bad is None:
            self._flat.mul_(factor)
        elif self._settings.weight_decay:
            self._flat.mul_(torch.full_like(bad, factor, dtype=torch.float32).masked_fill_(bad, 1.0))

    def _sgd(self, gradient: torch.Tensor, lr: float, bad: torch.Tensor | None) -> None:
        if self._settings.weight_decay:
            self._decay(lr, bad)
        if bad is not None:
            gradient.masked_fill_(bad, 0.0)
        self._flat.add_(gradient, alpha=-lr)

    def _adagrad(self, gradient: torch.Tensor, lr: float, bad: torch.Tensor | None) -> None:
        weight_decay = self._settings.weight_decay
        if bad is not None or not self._fused_adagrad:
            if weight_decay:
                gradient.add_(self._flat, alpha=weight_decay)
            if bad is not None:
                # With a gradient of 0 neither the sum nor the weights change.
                gradient.masked_fill_(bad, 0.0)
            self._adagrad_in_operations(gradient, lr)
            return
        adagrad(
            [self._flat],
            [gradient],
            [self.state["sum"]],
            [self.state["step"]],
            fused=True,
            foreach=False,
            lr=lr,
            weight_decay=weight_decay,
            lr_decay=0.0,
            eps=ADAGRAD_EPS,
            maximize=False,
        )

    def _adagrad_in_operations(self, gradient: torch.Tensor, lr: float) -> None:
        """Update as Adagrad does, in separate operations.

        Torch's fused Adagrad is only for the CPU. The root is taken of the sum that this worker computed,
        which includes its own square. Torch's optimizer would read the shared sum again. If another worker
        overwrote it in between, without this worker's square, the weight of an element without earlier
        gradients would change by `lr * g / eps`.
        """
        own = torch.addcmul(self.state["sum"], gradient, gradient)
        self.state["sum"].copy_(own)
        self._flat.addcdiv_(gradient, own.sqrt_().add_(ADAGRAD_EPS), value=-lr)
        self.state["step"] += 1

    def _adam(self, gradient: torch.Tensor, lr: float, bad: torch.Tensor | None) -> None:
        self._moments(gradient, lr, self._settings.weight_decay, bad)

    def _adamw(self, gradient: torch.Tensor, lr: float, bad: torch.Tensor | None) -> None:
        self._decay(lr, bad)
        self._moments(gradient, lr, 0.0, bad)

    def _moments(self, gradient: torch.Tensor, lr: float, l2: float, bad: torch.Tensor | None) -> None:
        step = self.state["step"]
        # Torch takes 1 off the count again if the batch is bad. Another worker must never see a count of 0,
        # because it would divide by 0.
        own = step if bad is None else step.clone()
        adam(
            [self._flat],
            [gradient],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [own],
            fused=True,
            foreach=False,
            amsgrad=False,
            found_inf=None if bad is None else bad.float(),
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            lr=lr,
            weight_decay=l2,
            eps=ADAM_EPS,
            maximize=False,
        )
        if own is not step:
            step.copy_(own)
