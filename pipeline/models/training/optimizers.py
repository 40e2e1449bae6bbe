"""Optimizers on the flat buffer, with one state for all workers.

Adam, and Adagrad where possible, are torch's fused ones. They are called by torch's functional interface,
because the classes of `torch.optim` import torch's compiler, which would cost each trainer more than a second
at its start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam

from ...config.trainer import TrainerSection
from .flat import ParameterSlice

ADAGRAD_EPS = 1e-10
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8

STATE_NAMES = {
    "sgd": (),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
MISSED = "missed"
"""State of Adam: for each parameter the steps in which it had no gradient."""

EMA = "ema"
"""State of a job with `trainer.ema`: the moving average of the weights, as long as these."""
EMA_UPDATES = "ema_updates"
"""How many updates the moving average has had."""
EMA_EVERY = 8
"""Batches of a worker from one update of the moving average to the next."""

_PATTERNS = 64
"""Sets of used parameters whose places a worker remembers."""

Used = tuple[bool, ...]
Rate = float | torch.Tensor


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the buffers that one operation updates.

    Attributes:
        flat, gradient: float32 [n], views.
        state: views of the state's tensors, float32 [n], in the order of `STATE_NAMES`.
    """

    flat: torch.Tensor
    gradient: torch.Tensor
    state: tuple[torch.Tensor, ...]


class WorkerOptimizer:
    """Update the shared flat buffer from one worker's flat gradient.

    Only the worker's thread may call.
    """

    def __init__(self, shared: SharedOptimizer, gradient: torch.Tensor) -> None:
        self._shared = shared
        self._gradient = gradient
        self._whole = [self._part(slice(None))]
        self._runs_of = lru_cache(_PATTERNS)(self._runs)
        self._each_of = lru_cache(_PATTERNS)(self._each)
        self._missed_of = lru_cache(_PATTERNS)(self._missed)

    def step(
        self,
        scale: float = 1.0,
        bad: torch.Tensor | None = None,
        used: Used | None = None,
        lr: Rate | None = None,
    ) -> None:
        """Update the buffer and the state in place, without a lock.

        The learning rate is `lr`, on a device a scalar there, float32; by default that of the settings times
        `scale`. `bad` is a bool scalar on the buffer's device, whose value
        the host need not know. If it is true, neither the buffer nor the state changes, whatever the
        gradient; only Adagrad's step count does, which has no effect. The gradient may be overwritten.

        `used` says which parameters have a gradient, see `flat.GradientWatch`; by default all. As in torch,
        the others keep their values, moments and step counts: no decay or momentum moves them. If all have
        one, the update is one operation on the whole buffer.
        """
        shared = self._shared
        if lr is None:
            lr = shared.settings.lr * scale
        if not shared.has_moments:
            # Without decay a gradient of zeros moves nothing.
            whole = used is None or not shared.settings.weight_decay
            shared.update(self._whole if whole else self._runs_of(used), lr, bad)
        elif used is None and not shared.is_uneven:
            shared.update(self._whole, lr, bad)
            shared.update_moments(self._whole, lr, bad)
        else:
            if used is None:
                used = (True,) * len(shared.spans)
            else:
                shared.note_missing()
            shared.update(self._runs_of(used), lr, bad)
            shared.update_moments(self._each_of(used), lr, bad, used, self._missed_of(used))

    def _runs(self, used: Used) -> list[_Part]:
        """Return the fewest parts that have the used parameters and no other."""
        parts, start = [], None
        for span, is_used in zip(self._shared.spans, used, strict=True):
            if is_used and start is None:
                start = span.start
            elif not is_used and start is not None:
                parts.append(self._part(slice(start, span.start)))
                start = None
        return parts if start is None else [*parts, self._part(slice(start, None))]

    def _each(self, used: Used) -> list[_Part]:
        """Return a part for each used parameter, except the frozen ones."""
        spans = [
            span
            for span, is_used in zip(self._shared.spans, used, strict=True)
            if is_used and not span.frozen
        ]
        return [self._part(slice(span.start, span.start + span.numel)) for span in spans]

    def _missed(self, used: Used) -> torch.Tensor | None:
        """Return 1 for each parameter that misses a step, float32 on the device; None if none does."""
        if all(used):
            return None
        return torch.tensor([not is_used for is_used in used], dtype=torch.float32).to(self._gradient.device)

    def _part(self, place: slice) -> _Part:
        shared = self._shared
        state = tuple(shared.state[name][place] for name in STATE_NAMES[shared.settings.optimizer])
        return _Part(shared.flat[place], self._gradient[place], state)


class SharedOptimizer:
    """The optimizer state of one trainer; `for_worker` returns a worker's optimizer.

    The state is a step count and float32 tensors as long as the replica. Workers update them without locks,
    like the replica.

    - SGD has no state.
    - Adagrad (Duchi, Hazan, Singer, JMLR 2011) has the sum of squares, `sum`.
    - Adam (Kingma and Ba, arXiv 1412.6980, Algorithm 1) has both moments, `exp_avg` and `exp_avg_sq`. The
      steps of a parameter, by which its moments are corrected, are those in which it had a gradient: `step`
      less the ones that it `missed`, float32 [parameters].
    - AdamW (Loshchilov and Hutter, arXiv 1711.05101, Algorithm 2) has the same state. Its weight decay is
      decoupled; that of the others is L2.

    Results are those of `torch.optim` with the same settings.

    With `ema` there is a moving average of the weights, too (Polyak and Juditsky, SIAM J. Control Optim. 30,
    1992), see `average`.

    Args:
        settings: the section [trainer].
        flat: float32 [numel], on any device; the state is put there too.
        memory: float32 [K * numel], zeros, for the K tensors of the state; by default new memory.
        spans: places of the parameters in `flat`; by default one has it all.

    Attributes:
        is_uneven: whether parameters have made different numbers of steps.
    """

    def __init__(
        self,
        settings: TrainerSection,
        flat: torch.Tensor,
        memory: torch.Tensor | None = None,
        spans: Sequence[ParameterSlice] = (),
    ) -> None:
        self.settings = settings
        self.flat = flat
        self.spans = tuple(spans) or (ParameterSlice("", 0, tuple(flat.shape)),)
        self.is_uneven = False
        self._fused_adagrad = flat.device.type == "cpu"
        names = STATE_NAMES[settings.optimizer]
        if memory is None:
            memory = flat.new_zeros(len(names) * flat.numel())
        self.state: dict[str, torch.Tensor] = dict(
            zip(names, memory.view(len(names), flat.numel()), strict=True)
        )
        if self.state:
            self.state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
        if self.has_moments:
            self.state[MISSED] = flat.new_zeros(len(self.spans))
        if settings.ema is not None:
            self.state[EMA] = torch.zeros_like(flat)
            # The host reads it.
            self.state[EMA_UPDATES] = torch.zeros(())

    @property
    def has_moments(self) -> bool:
        """Whether the optimizer is Adam or AdamW."""
        return self.settings.optimizer in ("adam", "adamw")

    def note_missing(self) -> None:
        """Note that a parameter misses a step."""
        self.is_uneven = True

    def restored(self) -> None:
        """Take over a state that was written from outside, before training."""
        if self.has_moments and bool(self.state[MISSED].any()):
            self.note_missing()

    def average(self) -> None:
        """Take the weights as they are now into their moving average; call it after `EMA_EVERY` batches.

        With R = ema^EMA_EVERY the n-th call is `a += (w - a) (1 - R) / (1 - R^n)`. So many batches at once
        have that power of the rate (the EMA scaling rule of Busbridge et al., arXiv 2307.13813), and the
        first weights have no share, as in Adam's correction of its means. Workers do it without a lock.
        """
        assert self.settings.ema is not None
        updates, log_rate = self.state[EMA_UPDATES], EMA_EVERY * math.log(self.settings.ema)
        updates += 1.0
        share = math.expm1(log_rate) / math.expm1(max(1.0, float(updates)) * log_rate)
        self.state[EMA].lerp_(self.flat, share)

    def averaged(self) -> torch.Tensor:
        """Return the moving average, or the weights before its first update; not a copy."""
        return self.state[EMA] if self.state[EMA_UPDATES] else self.flat

    def clone(self) -> SharedOptimizer:
        """Return an optimizer with copies of the buffer and the state."""
        made = SharedOptimizer(self.settings, torch.empty_like(self.flat), None, self.spans)
        made.take(self)
        return made

    def take(self, other: SharedOptimizer) -> None:
        """Copy the buffer and the state of another optimizer of the same settings and parameters."""
        self.flat.copy_(other.flat)
        for name, value in other.state.items():
            self.state[name].copy_(value)
        self.is_uneven = other.is_uneven

    def for_worker(self, gradient: torch.Tensor) -> WorkerOptimizer:
        """Return an optimizer that reads the worker's flat `gradient`, float32 [numel]."""
        return WorkerOptimizer(self, gradient)

    def update(self, parts: Sequence[_Part], lr: Rate, bad: torch.Tensor | None) -> None:
        """Update these parts; with moments only their decoupled decay."""
        step = {"sgd": self._sgd, "adagrad": self._adagrad, "adamw": self._decay}.get(self.settings.optimizer)
        if step is not None:
            for part in parts:
                step(part, lr, bad)

    def _decay(self, part: _Part, lr: Rate, bad: torch.Tensor | None) -> None:
        factor = 1.0 - lr * self.settings.weight_decay
        if bad is None:
            part.flat.mul_(factor)
        elif self.settings.weight_decay:
            if not isinstance(factor, torch.Tensor):
                factor = torch.full_like(bad, factor, dtype=torch.float32)
            part.flat.mul_(factor.masked_fill(bad, 1.0))

    def _sgd(self, part: _Part, lr: Rate, bad: torch.Tensor | None) -> None:
        if self.settings.weight_decay:
            self._decay(part, lr, bad)
        if bad is not None:
            part.gradient.masked_fill_(bad, 0.0)
        if isinstance(lr, torch.Tensor):
            part.flat.addcmul_(part.gradient, lr, value=-1)
        else:
            part.flat.add_(part.gradient, alpha=-lr)

    def _adagrad(self, part: _Part, lr: Rate, bad: torch.Tensor | None) -> None:
        weight_decay = self.settings.weight_decay
        if bad is not None or not self._fused_adagrad or isinstance(lr, torch.Tensor):
            if weight_decay:
                part.gradient.add_(part.flat, alpha=weight_decay)
            if bad is not None:
                # With a gradient of 0 neither the sum nor the weights change.
                part.gradient.masked_fill_(bad, 0.0)
            self._adagrad_in_operations(part, lr)
            return
        adagrad(
            [part.flat],
            [part.gradient],
            [part.state[0]],
            [self.state["step"]],
            fused=True,
            foreach=False,
            lr=lr,
            weight_decay=weight_decay,
            lr_decay=0.0,
            eps=ADAGRAD_EPS,
            maximize=False,
        )

    def _adagrad_in_operations(self, part: _Part, lr: Rate) -> None:
        """Update as Adagrad does, in separate operations.

        Torch's fused Adagrad is only for the CPU. The root is taken of the sum that this worker computed,
        which includes its own square. Torch's optimizer would read the shared sum again. If another worker
        overwrote it in between, without this worker's square, the weight of an element without earlier
        gradients would change by `lr * g / eps`.
        """
        squares = torch.addcmul(part.state[0], part.gradient, part.gradient)
        part.state[0].copy_(squares)
        roots = squares.sqrt_().add_(ADAGRAD_EPS)
        if isinstance(lr, torch.Tensor):
            part.flat.addcdiv_(part.gradient * lr, roots, value=-1)
        else:
            part.flat.addcdiv_(part.gradient, roots, value=-lr)
        self.state["step"] += 1

    def update_moments(
        self,
        parts: Sequence[_Part],
        lr: Rate,
        bad: torch.Tensor | None,
        used: Used | None = None,
        missed: torch.Tensor | None = None,
    ) -> None:
        """Make a step of Adam.

        `parts` is the whole buffer, or with `used` each used parameter, which then has a step count of its
        own. `missed` has 1 for each parameter that is not used.
        """
        step = self.state["step"]
        # Torch takes 1 off the count again if the batch is bad. Another worker must never see a count of 0,
        # because it would divide by 0.
        steps = step if bad is None and used is None else step.clone()
        counts = [steps]
        if used is not None:
            # Workers that count at once lose steps: a parameter may seem to have missed more than were made.
            made = (step - self.state[MISSED]).clamp_(min=0.0).unbind()
            counts = [
                count
                for count, span, is_used in zip(made, self.spans, used, strict=True)
                if is_used and not span.frozen
            ]
            steps += 1.0 if bad is None else 1.0 - bad.float()
        if parts:
            self._adam(parts, counts, lr, bad)
        if steps is not step:
            step.copy_(steps)
        if missed is not None:
            self.state[MISSED] += missed if bad is None else missed.masked_fill(bad, 0.0)

    def _adam(
        self, parts: Sequence[_Part], steps: list[torch.Tensor], lr: Rate, bad: torch.Tensor | None
    ) -> None:
        adam(
            [part.flat for part in parts],
            [part.gradient for part in parts],
            [part.state[0] for part in parts],
            [part.state[1] for part in parts],
            [],
            steps,
            fused=True,
            foreach=False,
            amsgrad=False,
            found_inf=None if bad is None else bad.float(),
            beta1=ADAM_BETAS[0],
            beta2=ADAM_BETAS[1],
            lr=lr,
            weight_decay=0.0 if self.settings.optimizer == "adamw" else self.settings.weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )
