"""A captured graph on the CPU: what torch did is done again, on the same memory, without Python."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NEEDS_A_VALUE = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
"""Operations that wait for the device: a real graph cannot hold them."""


@dataclass
class _Operation:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    results: list[torch.Tensor]


class FakeGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what torch does on this thread, to do it again.

    As a real graph does, a replay reads and writes the memory of the capture, whatever Python has done
    meanwhile. What the capture computed is forgotten: a real one computes nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[_Operation] = []
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._own: set[int] = set()
        self._outer: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = func.overloadpacket.__name__
        # A tensor of Python's values is copied from memory that does not stay; a single value is not.
        if name in NEEDS_A_VALUE or (name == "lift_fresh" and args[0].dim()):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        self._outer |= _places((args, named)) - self._own
        self._keep_outer(func, args, named)
        results = func(*args, **named)
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        # Views are of the memory of an argument.
        self._own |= _places(tensors) - self._outer
        self._operations.append(_Operation(func, args, named, tensors))
        return results

    def _keep_outer(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Keep the values of memory that is not of the graph, before it is written."""
        schema = func._schema.arguments
        given = [*zip(schema, args, strict=False), *((a, named[a.name]) for a in schema if a.name in named)]
        for argument, value in given:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_leaves(value):
                if not isinstance(tensor, torch.Tensor):
                    continue
                place = tensor.untyped_storage().data_ptr()
                if place in self._outer and place not in self._written:
                    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                    self._written[place] = (whole, whole.clone())

    def end(self) -> None:
        """Undo what the capture wrote to memory that is not of the graph."""
        for whole, before in self._written.values():
            whole.copy_(before)

    def replay(self) -> None:
        with torch.no_grad():
            for operation in self._operations:
                results = operation.function(*operation.arguments, **operation.named)
                made = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
                for place, tensor in itertools.zip_longest(operation.results, made):
                    if place.data_ptr() != tensor.data_ptr():
                        place.copy_(tensor)


def _places(values: Any) -> set[int]:
    return {
        leaf.untyped_storage().data_ptr() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)
    }


_LOCK = threading.Lock()


def captured(function: Callable[[], None]) -> Callable[[], None]:
    """Return a replay of what the function does, without doing it; raises what a capture would."""
    graph = FakeGraph()
    with _LOCK:
        try:
            with graph:
                function()
        finally:
            graph.end()
    return graph.replay
