"""Which steps of which optimizers are steps of an attached loop."""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .errors import AttachError
from .parameters import LoopParameters, is_attached

log = logging.getLogger(__name__)

COPY_STEPS: Final = 100
"""After so many steps of what looks like a copy it is told before the block ends."""


class StepHooks:
    """Sees the steps of all optimizers, and counts the loop's.

    What counts are steps of any optimizer over parameters of the first one that was given: of itself, of
    those that it wraps or that wrap it, and of those that were made, copied or loaded later. Steps within
    another's count once, and so do those of several that share its parameters among them.

    Args:
        parameters: the attached ones.
        optimizers: those that were given; the first with a parameter that is attached counts.
        steps: returns the steps so far.
        count: called after each step that counts, on its thread.
        rounds_wait: whether rounds are made between steps only.
    """

    def __init__(
        self,
        parameters: LoopParameters,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        steps: Callable[[], int],
        count: Callable[[], None],
        rounds_wait: bool,
    ) -> None:
        self._parameters = parameters
        stepped = [parameters.ids.intersection(map(id, _stepped(optimizer))) for optimizer in optimizers]
        self._counted: Final = next(ids for ids in stepped if ids)
        self._optimizers = weakref.WeakSet(
            optimizer for optimizer, ids in zip(optimizers, stepped, strict=True) if ids
        )
        self._steps, self._count, self._rounds_wait = steps, count, rounds_wait
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._changes, self._told_moves = parameters.buffer.changes, False
        self._saw_others = self._was_changed = False
        # Only until the first step counts: a loop without steps whose values change is an error.
        parameters.buffer.watch()
        # For each optimizer, how many steps the loop had counted when the optimizer's last step began.
        self._begun: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        # `id` of each parameter that the last counted step has changed, and the uncounted ones after it.
        self._changed: set[int] = set()
        # Optimizers of other parameters, with what was looked at.
        self._others: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._copies = CopyWatch(parameters)
        _replace(lambda seeing: (*seeing, self))

    def remove(self) -> None:
        """See no more steps, once no round changes anything; a second call does nothing."""
        _replace(lambda seeing: tuple(hooks for hooks in seeing if hooks is not self))
        self._copies.end(self._steps())
        self._was_changed = not self._steps() and self._parameters.buffer.check_for_foreign_changes()

    def require_counted(self) -> None:
        """Raise AttachError if something was trained, and no step counted; call it after `remove`."""
        if self._steps():
            return
        if not self._was_changed and not self._saw_others:
            log.warning("no optimizer made a step in the block, so there was nothing to synchronize")
            return
        what = "its parameters were changed" if self._was_changed else "an optimizer stepped other parameters"
        raise AttachError(
            f"no step of the attached module was counted in this block, though {what}; rounds follow the"
            " steps of optimizers",
            where="attach",
            remedy="step a torch.optim.Optimizer over the parameters of the module that is attached, not of a"
            " copy; updates by hand (p.data -= ...) are not seen, torch.optim.SGD makes the same ones",
        )

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise AttachError if the step would change what is not synchronized."""
        stepped = _stepped(optimizer)
        ids = [id(parameter) for parameter in stepped]
        if self._parameters.ids.isdisjoint(ids) and optimizer not in self._optimizers:
            self._look_at_other(optimizer, stepped)
            return
        if os.getpid() != self._pid:
            raise AttachError(
                "this process was forked after attach, and its steps cannot be synchronized",
                remedy="attach in each process that trains, after it was started",
            )
        # If there are several optimizers, only one of them checks the module.
        if not self._counted.isdisjoint(ids):
            if self._parameters.check():
                self._tell_moves()
            self._begun[optimizer] = self._steps()
        self._parameters.check_stepped(stepped)

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Count an optimizer's step, once for all optimizers that step parts of the module in turn."""
        ids = self._counted.intersection(map(id, _stepped(optimizer)))
        # Otherwise an optimizer that it wraps has been counted.
        if not ids or self._begun.get(optimizer) != self._steps():
            return
        if self._changed and self._changed.isdisjoint(ids):
            # An optimizer for each parameter, or for each part.
            self._changed |= ids
            return
        self._changed = set(ids)
        self._parameters.buffer.unwatch()
        self._copies.counted()
        self._count()

    def _tell_moves(self) -> None:
        """Say once that rounds may be lost by `p.data = ...`."""
        before, self._changes = self._changes, self._parameters.buffer.changes
        if self._changes != before and not self._rounds_wait and not self._told_moves:
            self._told_moves = True
            log.warning(
                "p.data = ... replaces parameters while rounds change them: what a round changes between"
                " reading a value and setting it is taken back. Change values in place (p.data.add_()), or"
                ' use mode="fixed"'
            )

    def _look_at_other(self, optimizer: torch.optim.Optimizer, stepped: list[torch.Tensor]) -> None:
        if threading.get_ident() == self._thread and not is_attached(stepped):
            self._saw_others = True
            self._copies.stepped(stepped, self._steps())
        # They may be unfrozen, or put into the module, later: after each step that counts it looks again.
        what = hash((self._steps(), *(id(parameter) for parameter in stepped if parameter.requires_grad)))
        if self._others.get(optimizer) != what:
            if self._parameters.contains_any(stepped):
                self._parameters.check_stepped(stepped)
            self._others[optimizer] = what


class CopyWatch:
    """Notices that a copy of the attached module is trained in its place.

    What an optimizer steps looks like a copy if it has the shapes of at least half of the attached elements.
    Other models may have them, too, and be trained in turn with the attached one: a network beside it, copies
    of inner loops. So it is told, once, and only if more such steps follow the last one of the attached
    module than there were between any two of its steps.
    """

    def __init__(self, parameters: LoopParameters) -> None:
        self._shapes = Counter(span.shape for span in parameters.layout.spans)
        self._elements = _elements(self._shapes)
        self._run = self._longest = 0
        self._is_told = False

    def stepped(self, parameters: Sequence[torch.Tensor], steps: int) -> None:
        """Record a step of other parameters, after `steps` of the attached ones."""
        if self._is_told or not self._is_alike(parameters):
            return
        self._run += 1
        # Not at once: models may be trained in turn, an epoch each.
        if self._run > max(COPY_STEPS, steps):
            self._tell_beyond(self._longest, steps)

    def counted(self) -> None:
        """Record a step of the attached parameters."""
        self._longest, self._run = max(self._longest, self._run), 0

    def end(self, steps: int) -> None:
        """Tell at the end, where no step can follow; of a module that was never stepped others tell."""
        if steps:
            self._tell_beyond(max(1, self._longest), steps)

    def _tell_beyond(self, longest: int, steps: int) -> None:
        if self._run <= longest or self._is_told:
            return
        self._is_told = True
        log.warning(
            "the attached module made %d steps, and none since; meanwhile optimizers made %d steps of other"
            " parameters of the same shapes. If they are a copy of it (copy.deepcopy, a model that was loaded"
            " anew), it is not synchronized: train the module that is attached, or leave the block and attach"
            " the copy",
            steps,
            self._run,
        )

    def _is_alike(self, parameters: Sequence[torch.Tensor]) -> bool:
        common = self._shapes & Counter(tuple(p.shape) for p in parameters if p.requires_grad)
        return 2 * _elements(common) >= self._elements


def _elements(shapes: Counter[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) * count for shape, count in shapes.items())


_seeing: tuple[StepHooks, ...] = ()
_LOCK = threading.Lock()


def _replace(change: Callable[[tuple[StepHooks, ...]], tuple[StepHooks, ...]]) -> None:
    global _seeing
    with _LOCK:
        _seeing = change(_seeing)


def _before(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for hooks in _seeing:
        hooks.before(optimizer)


def _after(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for hooks in _seeing:
        hooks.after(optimizer)


# Once and for good: a step of any thread goes through torch's list of hooks, which must not change meanwhile.
register_optimizer_step_pre_hook(_before)
register_optimizer_step_post_hook(_after)


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
