"""Export of the dense part of a model with torch.export or ONNX."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

from ..errors import JobFileError
from ..jobfile.extras import require_extra

Format: TypeAlias = Literal["torch-export", "onnx"]
FILES: dict[Format, str] = {"torch-export": "dense.pt2", "onnx": "dense.onnx"}
OUTPUT = "logits"
# More than 1, because an export would treat 0 and 1 as constants.
_EXAMPLES = 3
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def require_exporter(form: Format) -> None:
    """Raise JobFileError if a package that the format needs is not installed."""
    if form == "onnx":
        require_extra("--format onnx", "onnx")


def export_dense(
    module: nn.Module, dense_width: int, dims: Sequence[int], names: Sequence[str], form: Format, path: Path
) -> None:
    """Write the module to the file `path`, for any number of examples.

    Args:
        module: on the CPU, in evaluation mode.
        dense_width: D, number of dense features.
        dims: width of each table's embedding.
        names: names of the inputs in ONNX: "dense", then one for each table. A .pt2 file takes (dense [B, D],
            embeddings: list of [B, dim]), as the module does.
        form: format of the file.
        path: the file to write.

    Raises JobFileError for a module that cannot be exported, OSError if the file cannot be written.
    """
    inputs = (torch.zeros(_EXAMPLES, dense_width), [torch.zeros(_EXAMPLES, dim) for dim in dims])
    batch = torch.export.Dim("batch")
    shapes = ({0: batch}, [{0: batch} for _ in dims])
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
