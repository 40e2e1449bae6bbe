"""Which columns the elements of a model's first layers belong to.

A model that starts from one of other columns takes over what belongs to the columns that both have. Each
axis of a parameter may have labels: of a column of numbers, of a component of a column's vector, or of a
product of two columns. Elements with the same labels belong together, wherever they are.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ..config.job import Job
from ..types import Float32Array
from .built_in.dlrm import ALIGNMENT
from .layers.sequences import Embeddings
from .registry import MODELS, build_model, own_random_numbers, zero_inputs

log = logging.getLogger(__name__)

Label: TypeAlias = tuple[Any, ...]
Axes: TypeAlias = tuple[Sequence[Label] | None, ...]

# Parts that are named by the number of a column.
_NUMBERED = re.compile(r"(units|places|projections)\.(\d+)(.*)", re.DOTALL)


def canonical_name(job: Job, name: str) -> str:
    """Return a parameter's name with the names of columns in place of their numbers."""
    match = _NUMBERED.fullmatch(name) if job.model.name in MODELS else None
    return f"{match[1]}.{job.embedded_columns[int(match[2])].name}{match[3]}" if match else name


def input_axes(job: Job, names: Iterable[str]) -> Mapping[str, Axes]:
    """Return the axes of the parameters of these names.

    Only of those that have labels, in the job's model. Of a model of one's own these are linear layers that
    see inputs as they are; it is made and run to see that, and has none if it cannot be.
    """
    if job.model.name not in MODELS:
        return _observed(job)
    axes_by_name: dict[str, Axes] = {}
    for name in names:
        axes = _of_built_in(job, name)
        if axes:
            axes_by_name[name] = axes
    return axes_by_name


def copy_matching(
    target: torch.Tensor, saved: Float32Array, axes: Axes | None, saved_axes: Axes | None
) -> tuple[int, bool]:
    """Copy the elements of the same labels.

    An axis without labels goes by place, if both have its size. Returns the number of elements copied into
    `target`, and whether all saved ones were. Nothing is copied where an axis cannot be matched.
    """
    if target.ndim != saved.ndim:
        return 0, False
    if not axes and not saved_axes and target.shape == saved.shape:
        target.copy_(torch.from_numpy(saved))
        return saved.size, True
    none = (None,) * target.ndim
    pairs = []
    for dimension, (labels_of, saved_labels) in enumerate(zip(axes or none, saved_axes or none, strict=True)):
        if (
            labels_of is None
            or saved_labels is None
            or (len(labels_of), len(saved_labels)) != (target.shape[dimension], saved.shape[dimension])
        ):
            if target.shape[dimension] != saved.shape[dimension]:
                return 0, False
            labels_of = saved_labels = [(place,) for place in range(target.shape[dimension])]
        places = {label: place for place, label in enumerate(saved_labels)}
        pairs.append([(place, places[label]) for place, label in enumerate(labels_of) if label in places])
    if not all(pairs):
        return 0, False
    to = np.ix_(*([place for place, _ in axis] for axis in pairs))
    of = np.ix_(*([place for _, place in axis] for axis in pairs))
    values = torch.from_numpy(np.ascontiguousarray(saved[of]))
    target[tuple(map(torch.from_numpy, to))] = values.to(target.device)
    return values.numel(), values.numel() == saved.size


def _dense(job: Job) -> list[Label]:
    return [("dense", name) for name in job.data.dense_names]


def _vectors(job: Job, first: int = 0) -> list[Label]:
    return [
        ("vector", column.name, element)
        for column in job.embedded_columns
        for element in range(first, column.dim)
    ]


def _of_built_in(job: Job, name: str) -> Axes:
    """Return the axes of a built-in model's parameter.

    There are none if no column has a part of it.
    """
    x = [*_dense(job), *_vectors(job)]
    of_first: Axes = (None, x)
    model, bottom, options = job.model.name, job.model.bottom, job.model.options
    if model == "wide_deep":
        parts: dict[str, Axes] = {
            r"wide\.weight": (None, _dense(job)),
            r"deep\.0\.weight": (None, [*_dense(job), *_vectors(job, 1)]),
        }
    elif model == "dcn_v2":
        width = job.model.top[-1] if job.model.top else 0
        deep = [("deep", width, element) for element in range(width)] or [("deep", *label) for label in x]
        parallel = options.get("structure") == "parallel"
        parts = {
            r"cross\.\d+\.down\.weight|deep\.0\.weight": of_first,
            r"cross\.\d+\.up\.weight": (x, None if options.get("rank") else x),
            r"cross\.\d+\.up\.bias": (x,),
            r"last\.weight": (None, [*x, *deep] if parallel else deep),
        }
    elif model == "dlrm":
        parts = {r"bottom\.0\.weight": (None, _dense(job)), r"top\.0\.weight": (None, _interactions(job))}
    elif model == "deepfm":
        parts = {
            r"linear\.weight": (None, _dense(job)),
            r"deep\.0\.weight": (None, [*_dense(job), *_vectors(job, 1)]),
        }
    elif model == "autoint":
        fields = [*_dense(job), *(("column", column.name) for column in job.embedded_columns)]
        width = int(options.get("heads", 2)) * int(options.get("head_dim", 16))  # type: ignore[arg-type]
        parts = {
            r"dense_vectors": (_dense(job), None),
            r"last\.weight": (None, [(*field, number) for field in fields for number in range(width)]),
            r"deep\.0\.weight": of_first,
        }
    elif model == "finalmlp":
        parts = {r"gates": (None, x), r"(first|second)\.0\.weight": of_first}
    elif model == "ple":
        first = r"own\.\d+\.\d+\.0|shared\.\d+\.0|gates\.\d+|shared_gate"
        parts = {rf"levels\.0\.({first})\.weight": of_first}
    elif model == "mmoe":
        parts = {r"experts\.\d+\.0\.weight|gates\.\d+\.weight": of_first}
    elif job.model.has_towers:
        parts = {
            rf"{tower}\.top\.0\.weight": (None, _of_tower(columns, x))
            for tower, columns in (("query", job.model.query), ("item", job.model.item))
        }
    elif model == "shared_bottom":
        parts = {r"bottom\.0\.weight" if bottom else r"towers\.\d+\.0\.weight": of_first}
    else:
        parts = {r"top\.0\.weight": of_first}
    return next((axes for pattern, axes in parts.items() if re.fullmatch(pattern, name)), ())


def _of_tower(columns: Sequence[str], labels: Sequence[Label]) -> list[Label]:
    """Return the labels of a tower's input, as `TowerInputs` has its columns."""
    return [
        label
        for kind in ("dense", "vector")
        for column in columns
        for label in labels
        if label[:2] == (kind, column)
    ]


def _interactions(job: Job) -> list[Label]:
    """Return the labels of the input of DLRM's top MLP, with its padding."""
    dense, dim = bool(job.data.dense_width), max(column.dim for column in job.embedded_columns)
    features = [*(["dense"] if dense else []), *(f"column {column.name}" for column in job.embedded_columns)]
    pairs = [
        ("pair", frozenset((feature, earlier)))
        for number, feature in enumerate(features)
        for earlier in features[:number]
    ]
    below = [("below", dim, number) for number in range(dim if dense else 0)]
    return [
        *below,
        *pairs,
        *(("padding", number) for number in range(-(len(below) + len(pairs)) % ALIGNMENT)),
    ]


def _observed(job: Job) -> Mapping[str, Axes]:
    """Return the axes of an own model's linear layers that see inputs.

    The inputs of an example are all different, so a layer's input says by its values which they are. What
    else a layer sees is labelled by its place, and belongs to that of a model with as many of these.
    """
    try:
        module = build_model(job).eval()
        seen: dict[str, torch.Tensor] = {}
        for name, part in module.named_modules():
            if isinstance(part, nn.Linear):
                part.register_forward_pre_hook(partial(_note_input, seen, name))
        dense, embeddings = zero_inputs(job)
        known = _number(job, dense, embeddings)
        with own_random_numbers(job.run.seed), torch.no_grad():
            module(dense, embeddings)
    except Exception as error:  # noqa: BLE001 - the user's own, for columns for which it may not be made
        log.info("%s does not run with the columns of %s: %s", job.model.name, job.run.name, error)
        return {}
    return {f"{name}.weight": (None, _labels(values.tolist(), known)) for name, values in seen.items()}


def _note_input(
    seen: dict[str, torch.Tensor], name: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> None:
    if inputs[0].ndim == 2:
        seen.setdefault(name, inputs[0][0].float().clone())


def _number(job: Job, dense: torch.Tensor, embeddings: Embeddings) -> dict[float, Label]:
    """Number the inputs of the first example; return the labels of the numbers."""
    known: dict[float, Label] = {}
    parts = [(dense, _dense(job))]
    for column, vectors in zip(job.embedded_columns, embeddings, strict=True):
        if isinstance(vectors, torch.Tensor):
            parts.append((vectors, [("vector", column.name, element) for element in range(column.dim)]))
    for tensor, labels in parts:
        for element, label in enumerate(labels):
            # Exact in float32, and no value that a layer is likely to make.
            number = 0.5 + (len(known) + 1) / 2**16
            tensor[0, element] = number
            known[number] = label
    return known


def _labels(values: Sequence[float], known: Mapping[float, Label]) -> list[Label]:
    others = sum(value not in known for value in values)
    times: Counter[Label] = Counter()
    labels: list[Label] = []
    for value in values:
        label = known.get(value, ("other", others))
        labels.append((*label, times[label]))
        times[label] += 1
    return labels
