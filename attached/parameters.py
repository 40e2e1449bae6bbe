"""The trainable parameters of a user's module, where they are."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..nodes.replica.scattered import ScatteredBuffer
from ..pipeline.models.training.flat import FlatLayout
from ..pipeline.wire.control.loops import ParameterShape
from .errors import AttachError

# Prefixes that `torch.compile` adds to names; the module inside may be compiled on one machine only.
_WRAPPER = "_orig_mod."
# Of all parameters that are attached in this process, by `id`.
_ATTACHED: set[int] = set()
_LOCK = threading.Lock()


@dataclass(slots=True)
class _Place:
    """Where a module has a parameter, and where its values were."""

    owner: nn.Module
    key: str
    name: str
    parameter: nn.Parameter
    address: int


@dataclass(frozen=True, slots=True)
class _Link:
    """Where a module has a part in which attached parameters are."""

    owner: nn.Module
    key: str
    name: str
    part: nn.Module


class LoopParameters:
    """A module's trainable parameters, as they were at attach.

    Module, parameters and storages stay the user's, and nothing is changed but values. Belongs to the loop's
    thread.

    Attributes:
        layout: the layout of the trainable parameters, by their names in the module.
        buffer: the parameters as one flat buffer; any thread may use it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = FlatLayout(module, trainable=True)
        parameters = dict(module.named_parameters())
        self._places: list[_Place] = []
        links: dict[tuple[int, str], _Link] = {}
        for span in self.layout.spans:
            path, _, key = span.name.rpartition(".")
            owner = module
            for depth, part in enumerate(path.split(".") if path else []):
                inner = owner.get_submodule(part)
                name = ".".join(path.split(".")[: depth + 1])
                links[id(owner), part] = _Link(owner, part, name, inner)
                owner = inner
            parameter = parameters[span.name]
            self._places.append(_Place(owner, key, span.name, parameter, parameter.data_ptr()))
        self._links = list(links.values())
        self.buffer = ScatteredBuffer(self.layout, [place.parameter for place in self._places])
        self.ids = frozenset(id(place.parameter) for place in self._places)
        self._is_claimed = False

    @property
    def device(self) -> torch.device:
        return self._places[0].parameter.device

    @property
    def shapes(self) -> tuple[ParameterShape, ...]:
        """Names and shapes in order, to compare with those of other loops."""
        return tuple(
            ParameterShape(span.name.replace(_WRAPPER, ""), span.shape) for span in self.layout.spans
        )

    def claim(self) -> None:
        """Mark the parameters as attached; raises AttachError if one is already."""
        with _LOCK:
            for place in self._places:
                if id(place.parameter) in _ATTACHED:
                    raise AttachError(
                        "is attached already",
                        where=place.name,
                        remedy="leave the block of the first attach before the second",
                    )
            _ATTACHED.update(self.ids)
            self._is_claimed = True

    def release(self) -> None:
        """Unmark the parameters."""
        with _LOCK:
            if self._is_claimed:
                _ATTACHED.difference_update(self.ids)
                self._is_claimed = False

    def check(self) -> bool:
        """Raise AttachError if the module has another parameter, or one that cannot be synchronized.

        Returns whether values are elsewhere than at the last look.
        """
        for link in self._links:
            if link.owner._modules.get(link.key) is not link.part:
                raise _replaced(link.name)
        moved = False
        for place in self._places:
            parameter = place.parameter
            if place.owner._parameters.get(place.key) is not parameter:
                raise _replaced(place.name)
            if (address := parameter.data_ptr()) != place.address:
                place.address, moved = address, True
                self._check_kind(place)
        return moved

    def check_stepped(self, stepped: Iterable[torch.Tensor]) -> None:
        """Raise AttachError if an optimizer steps a parameter that is not synchronized."""
        stray = [
            parameter for parameter in stepped if id(parameter) not in self.ids and parameter.requires_grad
        ]
        if not stray:
            return
        names = self._names(stray)
        if names:
            raise AttachError(
                "is trained by an optimizer, and was not trainable or not there at attach: it would never be"
                " synchronized",
                where=names[0],
                remedy="let it be trainable from the start, at a learning rate of 0 until it is wanted; or"
                " leave the block, and attach all loops again, at a hub of their own",
            )
        raise AttachError(
            f"an optimizer steps a parameter of shape {tuple(stray[0].shape)} that is not in the attached"
            " module, beside those that are",
            remedy="attach a module that contains it, or give it an optimizer of its own",
        )

    def contains_any(self, stepped: Collection[torch.Tensor]) -> bool:
        """Return whether one of these is the module's, synchronized or not."""
        return bool(self._names(stepped))

    def require_all(self) -> None:
        """Raise AttachError unless the module still has every parameter by its name."""
        parameters = dict(self.module.named_parameters())
        for place in self._places:
            if parameters.get(place.name) is not place.parameter:
                raise _replaced(place.name)

    def values(self, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's name and its values in `flat`, float32 [numel]."""
        for span, view in self.layout.views(flat):
            yield span.name, view

    def _names(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        ids = {id(parameter) for parameter in tensors}
        return [name for name, parameter in self.module.named_parameters() if id(parameter) in ids]

    def _check_kind(self, place: _Place) -> None:
        now, span = place.parameter, next(other for other in self.layout.spans if other.name == place.name)
        if now.dtype != torch.float32 or now.device != self.buffer.device or tuple(now.shape) != span.shape:
            raise AttachError(
                f"is now {str(now.dtype).removeprefix('torch.')} {list(now.shape)} on {now.device}; it is"
                f" synchronized as float32 {list(span.shape)} on {self.buffer.device}. .to(), .double(),"
                " .half() and p.data = ... do that",
                where=place.name,
                remedy="change the model before attach, or change a copy of it: copy.deepcopy(model)",
            )


def is_attached(stepped: Iterable[torch.Tensor]) -> bool:
    """Return whether a loop of this process has attached one of these."""
    with _LOCK:
        return not _ATTACHED.isdisjoint(map(id, stepped))


def _replaced(name: str) -> AttachError:
    return AttachError(
        "was replaced since attach, and what is there now is not synchronized; load_state_dict(assign=True),"
        " a new layer, pruning and parametrizations do that",
        where=name,
        remedy="load with assign=False, or change the model before attach: leave the block, and attach again",
    )
