"""The flat replica: all dense parameters of a trainer in one float32 buffer (contract 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Span:
    """Where one parameter lies in the flat buffer."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the parameter."""
        return int(torch.Size(self.shape).numel())


class FlatLayout:
    """The parameters of a module, in the order of `named_parameters`, each aligned to 16 elements.

    The gaps of the alignment are zero and stay zero: their gradients are.
    """

    ALIGNMENT = 16

    def __init__(self, module: nn.Module) -> None:
        self.spans: list[Span] = []
        at = 0
        for name, parameter in module.named_parameters():
            if parameter.dtype != torch.float32:
                raise TypeError(f"parameter {name} is {parameter.dtype}; a flat replica holds float32 only")
            self.spans.append(Span(name, at, tuple(parameter.shape)))
            at += -(-parameter.numel() // self.ALIGNMENT) * self.ALIGNMENT
        self.numel = at

    def views(self, flat: torch.Tensor) -> Iterator[tuple[Span, torch.Tensor]]:
        """Each parameter as a view of `flat`, float32 [numel]."""
        for span in self.spans:
            yield span, flat[span.start : span.start + span.numel].view(span.shape)

    def gather(self, module: nn.Module) -> torch.Tensor:
        """A new flat buffer with the module's values."""
        flat = torch.zeros(self.numel, dtype=torch.float32)
        values = dict(module.named_parameters())
        with torch.no_grad():
            for span, view in self.views(flat):
                view.copy_(values[span.name])
        return flat

    def attach(self, module: nn.Module, flat: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Makes the module's parameters views of `flat` and, if given, their gradients views of `gradient`.

        Done through `p.data`: a Parameter made from a view would share its version counter, and another
        worker's step between forward and backward would then raise.
        """
        parameters = dict(module.named_parameters())
        for span, view in self.views(flat):
            parameters[span.name].data = view
        if gradient is not None:
            for span, view in self.views(gradient):
                parameters[span.name].grad = view


def digest_of(flat: torch.Tensor) -> str:
    """Hex SHA-256 of a flat buffer's bytes."""
    return hashlib.sha256(flat.contiguous().numpy().data).hexdigest()
