"""The flat replica: a trainer's dense parameters in one float32 buffer.

See the rule "One flat buffer" in docs/architecture.md. `BFloat16Weights` is a worker's copy of the weight
matrices in bfloat16, for its matrix products.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ...types import FLAT_ALIGNMENT

_MATRIX_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules that use their `weight` only in a product, for which autocast rounds it in any case."""


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """The place of one parameter in the flat buffer; `start` counts elements.

    That of a `frozen` parameter is kept, but has no meaning: the parameter is no view of the buffer.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    frozen: bool = False

    @property
    def numel(self) -> int:
        """Return the number of elements of the parameter."""
        return int(torch.Size(self.shape).numel())


def place_in_order(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[ParameterSlice], int]:
    """Return a place for each tensor, one after another, and the elements of all.

    Each is aligned to 16 elements. Raises TypeError for a tensor that is not float32.
    """
    spans: list[ParameterSlice] = []
    end = 0
    for name, tensor in tensors:
        if tensor.dtype != torch.float32:
            raise TypeError(f"parameter {name} is {tensor.dtype}; a flat replica holds float32 only")
        frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        spans.append(ParameterSlice(name, end, tuple(tensor.shape), frozen))
        end += -(-tensor.numel() // FLAT_ALIGNMENT) * FLAT_ALIGNMENT
    return spans, end


class FlatLayout:
    """The layout of a module's parameters in one buffer.

    Parameters are in the order of `named_parameters`, each aligned to 16 elements. The gaps between them stay
    zero, because their gradients are zero. Raises TypeError for a parameter that is not float32.

    Args:
        trainable: whether only parameters that require a gradient have a place. Otherwise the others have
            one too, but are never views of the buffer: what decays, averages or rounds it cannot move them
            (`constants.Constants`).
    """

    def __init__(self, module: nn.Module, *, trainable: bool = False) -> None:
        every = module.named_parameters()
        self.spans, self.numel = place_in_order(
            named for named in every if named[1].requires_grad or not trainable
        )

    def views(self, flat: torch.Tensor) -> Iterator[tuple[ParameterSlice, torch.Tensor]]:
        """Yield each parameter as a view of `flat`, float32 [numel]."""
        for span in self.spans:
            yield span, flat[span.start : span.start + span.numel].view(span.shape)

    def gather(self, module: nn.Module) -> torch.Tensor:
        """Return a new flat buffer with the module's values."""
        flat = torch.zeros(self.numel, dtype=torch.float32)
        values = dict(module.named_parameters())
        with torch.no_grad():
            for span, view in self.views(flat):
                view.copy_(values[span.name])
        return flat

    def attach(self, module: nn.Module, flat: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """Make the module's parameters views of `flat`.

        With `gradient` their gradients become views of it. Views are set through `p.data`, because a
        Parameter made from a view would share the buffer's version counter: another worker's step between
        forward and backward would then raise.
        """
        parameters = dict(module.named_parameters())
        for span, view in self.views(flat):
            if not span.frozen:
                parameters[span.name].data = view
        if gradient is not None:
            for span, view in self.views(gradient):
                if not span.frozen:
                    # Without the buffer's version counter: `GradientWatch` reads the parameter's own.
                    parameters[span.name].grad = view.data


class GradientWatch:
    """Which parameters a backward pass gave a gradient.

    Torch leaves a gradient of None alone; here the gradients of parameters that a batch does not use are
    zeros. Autograd raises the version of a gradient to which it adds, even if it adds zeros. Only the
    worker's thread may call.

    Args:
        layout: layout of the parameters.
        module: the worker's module, attached to its gradients.
    """

    def __init__(self, layout: FlatLayout, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        self._watched = [None if span.frozen else parameters[span.name] for span in layout.spans]
        self._known = [None if known is None else known.grad for known in self._watched]
        self._versions = [0 if known is None else known._version for known in self._known]

    def used(self) -> tuple[bool, ...] | None:
        """Return for each place whether it got a gradient since the last call.

        The places are those of the layout. None if all did. A frozen parameter counts as one that did.
        """
        is_used = []
        for number, (parameter, known) in enumerate(zip(self._watched, self._known, strict=True)):
            gradient = None if parameter is None else parameter.grad
            if gradient is None or gradient is not known:
                is_used.append(parameter is None or gradient is not None)
            else:
                version = gradient._version
                is_used.append(version != self._versions[number])
                self._versions[number] = version
        return None if all(is_used) else tuple(is_used)


def digest_of(flat: torch.Tensor) -> str:
    """Return the hex SHA-256 of a flat buffer's bytes."""
    return hashlib.sha256(flat.contiguous().numpy().data).hexdigest()


class BFloat16Weights:
    """A worker's bfloat16 copy of its linear and convolutional layers' weights.

    Other parameters stay float32; autocast rounds them if it must. For each weight autocast would need
    separate operations to round it, to convert its gradient to float32, and to add the gradient to zeros.
    Here each of these is one operation for all weights, with the same values. Only the worker's thread may
    call.

    Args:
        layout: layout of the parameters.
        module: the worker's module; its parameters become views of the copy or of the flat buffers.
        flat: float32 [numel], the replica.
        gradient: float32 [numel], the worker's flat gradient.
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
        rounded = set(roundable_weights(module))
        for (span, value), (_, slope) in zip(layout.views(self._values), layout.views(gradient), strict=True):
            parameter = parameters[span.name]
            if parameter in rounded and not span.frozen:
                parameter.grad = None
                parameter.data = value
                self._matrices.append(parameter)
                self._gradients.append(slope)
            else:
                # A frozen one too: decay is added to its place, and the norm is of all places.
                self._others.append(slope)

    def refresh(self) -> None:
        """Copy the replica's values and drop gradients, before a step."""
        self._values.copy_(self._flat)
        for matrix in self._matrices:
            matrix.grad = None

    def clear(self) -> None:
        """Zero the flat gradient, before the backward pass.

        The part that `collect` overwrites is left out.
        """
        if self._others:
            torch._foreach_zero_(self._others)

    def collect(self) -> None:
        """Write the matrices' gradients into the flat gradient.

        Call it after the backward pass.
        """
        known = [(to, m.grad) for to, m in zip(self._gradients, self._matrices, strict=True)]
        pairs = [(to, gradient) for to, gradient in known if gradient is not None]
        if pairs:
            torch._foreach_copy_([to for to, _ in pairs], [gradient for _, gradient in pairs])
        for to, gradient in known:
            if gradient is None:
                to.zero_()


def roundable_weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield weights of matrix layers that belong to one module only."""
    owners = Counter(p for submodule in module.modules() for p in submodule.parameters(recurse=False))
    for submodule in module.modules():
        # Not of subclasses, which may use the weight in some other way.
        if type(submodule) in _MATRIX_LAYERS and owners[submodule.weight] == 1:  # type: ignore[index]
            yield submodule.weight  # type: ignore[misc]
