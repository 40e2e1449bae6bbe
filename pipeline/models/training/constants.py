"""Constants of a module: its frozen parameters and saved buffers.

They are in a checkpoint beside the trained parameters, so that scoring has those of training, whatever the
model's code draws elsewhere. They are in no flat replica: nothing averages, rounds or decays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from .flat import place_in_order


def constant_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's constants by name.

    They are the frozen parameters, then the buffers of its state dict, in float32. Other buffers are as the
    model's code makes them.
    """
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter
    saved = set(module.state_dict(keep_vars=True))
    for name, buffer in module.named_buffers():
        if name in saved and buffer.dtype == torch.float32:
            yield name, buffer


class Constants:
    """A trainer's constants, which its workers share.

    They are written only before training begins. Any thread may read.

    Args:
        module: the model with its first values.
        place: moves float32 [numel] to the trainer's device.
    """

    def __init__(self, module: nn.Module, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
        tensors = list(constant_tensors(module))
        self._spans, numel = place_in_order(tensors)
        first = torch.zeros(numel)
        values = dict(tensors)
        for span in self._spans:
            first[span.start : span.start + span.numel] = values[span.name].detach().reshape(-1)
        self._flat = place(first) if numel else first

    @property
    def flat(self) -> torch.Tensor:
        """All of them in one, float32 [numel]."""
        return self._flat

    def named(self) -> dict[str, torch.Tensor]:
        """Return views of all, by name."""
        return {
            span.name: self._flat[span.start : span.start + span.numel].view(span.shape)
            for span in self._spans
        }

    def attach(self, module: nn.Module) -> None:
        """Make the constants of a copy of the module views of these."""
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        views: dict[int, torch.Tensor] = {}
        for name, view in self.named().items():
            if name in parameters:
                parameters[name].data = view
            else:
                views[id(buffers[name])] = view
        for part in module.modules():
            # A buffer may have several names.
            for key, buffer in part._buffers.items():
                part._buffers[key] = views.get(id(buffer), buffer)
