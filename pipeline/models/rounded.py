"""The matrices of a flat replica in bfloat16, as a worker's step multiplies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn

from .flat import FlatLayout

_MULTIPLYING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules that read their `weight` in a product only, of which autocast rounds it in any case."""


class RoundedMatrices:
    """A worker's bfloat16 copy of the weights of its linear and convolutional layers; all other parameters
    are used as they are, in float32, and rounded by autocast where that does it.

    Autocast would round each weight, and widen each gradient, by an operation of its own, and add that to
    zeros. Here each of these is one operation for all, with the same values. Only the worker's thread calls.

    Args:
        layout: where the parameters lie.
        module: the worker's own; its parameters are made views, of the copy or of the flat buffers.
        flat: float32 [numel], the replica.
        gradient: float32 [numel], the worker's own.
    """

    def __init__(
        self, layout: FlatLayout, module: nn.Module, flat: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        self._flat = flat
        self._values = torch.zeros_like(flat, dtype=torch.bfloat16)
        self._matrices: list[nn.Parameter] = []
        self._gradients: list[torch.Tensor] = []
        self._others: list[torch.Tensor] = []
        layout.attach(module, flat, gradient)
        parameters = dict(module.named_parameters())
        rounded = set(_rounded(module))
        for (span, value), (_, slope) in zip(layout.views(self._values), layout.views(gradient), strict=True):
            parameter = parameters[span.name]
            if parameter in rounded:
                parameter.grad = None
                parameter.data = value
                self._matrices.append(parameter)
                self._gradients.append(slope)
            else:
                self._others.append(slope)

    def refresh(self) -> None:
        """Before a step: takes the replica's values of this moment, and no gradient."""
        self._values.copy_(self._flat)
        for matrix in self._matrices:
            matrix.grad = None

    def clear(self) -> None:
        """Before the backward pass: zeros in the flat gradient, but where `collect` will write."""
        if self._others:
            torch._foreach_zero_(self._others)

    def collect(self) -> None:
        """After the backward pass: writes the matrices' gradients into the flat one."""
        known = [(to, m.grad) for to, m in zip(self._gradients, self._matrices, strict=True)]
        found = [(to, gradient) for to, gradient in known if gradient is not None]
        if found:
            torch._foreach_copy_([to for to, _ in found], [gradient for _, gradient in found])
        for to, gradient in known:
            if gradient is None:
                to.zero_()


def _rounded(module: nn.Module) -> Iterator[nn.Parameter]:
    """Weights that nothing but one layer's product reads, as far as modules tell."""
    owners = Counter(p for own in module.modules() for p in own.parameters(recurse=False))
    for own in module.modules():
        # Of the class itself: what is derived from it may use its weight in some other way.
        if type(own) in _MULTIPLYING and owners[own.weight] == 1:  # type: ignore[index]
            yield own.weight  # type: ignore[misc]
