"""Export of the dense part of a model with torch.export or ONNX."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import nn

from ..errors import JobFileError
from ..jobfile.extras import require_extra
from ..models.layers.sequences import with_lengths

Format: TypeAlias = Literal["torch-export", "onnx"]
FILES: dict[Format, str] = {"torch-export": "dense.pt2", "onnx": "dense.onnx"}
OUTPUT = "logits"
NO_SEQUENCES: Final[Mapping[int, int]] = MappingProxyType({})
# More than 1, because an export would treat 0 and 1 as constants.
_EXAMPLES = 3
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def require_exporter(form: Format) -> None:
    """Raise JobFileError if a package that the format needs is not installed."""
    if form == "onnx":
        require_extra("--format onnx", "onnx")


class _WithLengths(nn.Module):
    """A model that takes sequences, with tensors alone as inputs."""

    def __init__(self, module: nn.Module, sequences: Sequence[int]) -> None:
        super().__init__()
        self._module, self._sequences = module, tuple(sequences)

    def forward(
        self, dense: torch.Tensor, embeddings: list[torch.Tensor], lengths: list[torch.Tensor]
    ) -> torch.Tensor:
        of_tables = dict(zip(self._sequences, lengths, strict=True))
        logits: torch.Tensor = self._module(dense, with_lengths(embeddings, of_tables))
        return logits


def export_dense(
    module: nn.Module,
    dense_width: int,
    dims: Sequence[int],
    names: Sequence[str],
    form: Format,
    path: Path,
    longest: Mapping[int, int] = NO_SEQUENCES,
) -> None:
    """Write the module to the file `path`, for any number of examples.

    Args:
        module: on the CPU, in evaluation mode.
        dense_width: D, number of dense features.
        dims: width of each table's embedding.
        names: names of the inputs in ONNX: "dense", then one for each table, then one for each sequence. A
            .pt2 file takes (dense [B, D], embeddings: list of [B, dim]), as the module does. With sequences
            it takes (dense, embeddings, lengths): a sequence's embedding is [B, L, dim], with zeros behind
            a shorter list, and `lengths` has int64 [B] for each.
        form: format of the file.
        path: the file to write.
        longest: for each table that is a sequence the largest L.

    Raises JobFileError for a module that cannot be exported, OSError if the file cannot be written.
    """
    inputs, shapes = _inputs(dense_width, dims, longest)
    if longest:
        module = _WithLengths(module, list(longest)).eval()
    try:
        with _quiet(), _own_cache():
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=True)
            if form == "torch-export":
                torch.export.save(program, path)
                return
            made = torch.onnx.export(
                program, dynamo=True, input_names=list(names), output_names=[OUTPUT], verbose=False
            )
            assert made is not None
            made.save(path)
    except OSError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise JobFileError(
            f"the model cannot be exported ({type(error).__name__}: {first})",
            where=type(module).__name__,
            remedy="see torch.export's documentation on what a forward may do",
        ) from error


def _inputs(
    dense_width: int, dims: Sequence[int], longest: Mapping[int, int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return examples of a module's inputs, and which of their dimensions may differ."""
    batch = torch.export.Dim("batch")
    tables: list[torch.Tensor] = []
    shapes: list[dict[int, Any]] = []
    for number, dim in enumerate(dims):
        most = longest.get(number)
        length = () if most is None else (min(_EXAMPLES, most),)
        tables.append(torch.zeros(_EXAMPLES, *length, dim))
        # A sequence of one vector at most has nothing that may differ.
        lists = {1: torch.export.Dim(f"length_{number}", max=most)} if most is not None and most > 1 else {}
        shapes.append({0: batch, **lists})
    inputs, dynamic = (torch.zeros(_EXAMPLES, dense_width), tables), ({0: batch}, shapes)
    if not longest:
        return inputs, dynamic
    lengths = [torch.ones(_EXAMPLES, dtype=torch.int64) for _ in longest]
    return (*inputs, lengths), (*dynamic, [{0: batch} for _ in longest])


@contextmanager
def _own_cache() -> Iterator[None]:
    """Use a temporary folder for the compiler's cache, which exporters leave behind."""
    before = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="shadowsync-") as folder:
        os.environ[_CACHE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[_CACHE]
            else:
                os.environ[_CACHE] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings on their own deprecations and missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
