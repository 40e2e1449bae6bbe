"""The trainable parameters of a user's module as views of one flat buffer."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import nn

from ..pipeline.models.flat import FlatLayout
from ..pipeline.wire.control.loops import ParameterShape
from .errors import AttachError

# Prefixes that `torch.compile` adds to names; the module inside may be compiled on one machine only.
_WRAPPER = "_orig_mod."
# Of all parameters that are attached in this process, by `id`.
_ATTACHED: set[int] = set()
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module has a parameter, and where its values have to be."""

    owner: nn.Module
    key: str
    name: str
    parameter: nn.Parameter
    address: int


class ParameterViews:
    """A module's trainable parameters as views of one flat buffer.

    The parameters stay the same objects, so optimizers, schedulers and compiled code keep them. Belongs to
    the loop's thread.

    Attributes:
        layout: the layout of the trainable parameters, by their names in the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = FlatLayout(module, trainable=True)
        self._places: list[_Place] = []
        self._ids: set[int] = set()

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        names = dict(self.module.named_parameters())
        return names[self.layout.spans[0].name].device

    @property
    def shapes(self) -> tuple[ParameterShape, ...]:
        """Names and shapes in order, to compare with those of other loops."""
        return tuple(ParameterShape(one.name.replace(_WRAPPER, ""), one.shape) for one in self.layout.spans)

    def claim(self) -> None:
        """Mark the parameters as attached; raises AttachError if one is already."""
        parameters = dict(self.module.named_parameters())
        with _LOCK:
            for span in self.layout.spans:
                if id(parameters[span.name]) in _ATTACHED:
                    raise AttachError(
                        "is attached already",
                        where=span.name,
                        remedy="leave the block of the first attach before the second",
                    )
            self._ids = {id(parameters[span.name]) for span in self.layout.spans}
            _ATTACHED.update(self._ids)

    def attach(self, flat: torch.Tensor) -> None:
        """Move the values into `flat`, and make the parameters views of it.

        `flat` is float32 [numel] on the device.
        """
        self.layout.move(self.module, flat)
        parameters = dict(self.module.named_parameters())
        self._places = []
        for span in self.layout.spans:
            owner_name, _, key = span.name.rpartition(".")
            parameter = parameters[span.name]
            owner = self.module.get_submodule(owner_name)
            self._places.append(_Place(owner, key, span.name, parameter, parameter.data_ptr()))

    def check(self) -> None:
        """Raise AttachError if a parameter is no longer a view of the buffer."""
        for place in self._places:
            if place.owner._parameters.get(place.key) is not place.parameter:
                raise AttachError(
                    "was replaced by another parameter, which the optimizer does not step and nobody"
                    " synchronizes; load_state_dict(assign=True) does that",
                    where=place.name,
                    remedy="load with assign=False, or change the model before attach",
                )
            if place.parameter.data_ptr() != place.address:
                raise AttachError(
                    "has its values elsewhere than attach put them, so it is no longer synchronized; .to(),"
                    " .double(), .half() and p.data = ... do that",
                    where=place.name,
                    remedy="change the model before attach, or copy values with p.data.copy_()",
                )

    def detach(self) -> None:
        """Give each parameter values of its own, and unmark all."""
        for place in self._places:
            if place.parameter.data_ptr() == place.address:
                place.parameter.data = place.parameter.data.clone()
        self._places = []
        with _LOCK:
            _ATTACHED.difference_update(self._ids)
        self._ids = set()
