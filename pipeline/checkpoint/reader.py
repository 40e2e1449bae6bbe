"""Reader of a checkpoint's tensor files; reads only the requested tensors and rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from .files import DTYPES, ROWS_KEY, FileEntry
from .stored_files import StoredFiles, TensorForm

_REMEDY = "restore the file, or use another checkpoint"


@dataclass(frozen=True)
class _File:
    """One file, in a folder or in a store."""

    place: Path | StoredFiles
    entry: FileEntry

    def header(self) -> tuple[dict[str, str], dict[str, TensorForm]]:
        """Read the metadata, and the tensors by name."""
        if isinstance(self.place, StoredFiles):
            return self.place.header(self.entry)
        return _header_of(self.place / self.entry.name)

    def array(self, dtype: np.dtype[Any], count: int, offset: int) -> NDArray[Any]:
        """Read numbers from an offset; there may be fewer."""
        if isinstance(self.place, StoredFiles):
            return self.place.read(self.entry, dtype, count, offset)
        return np.fromfile(self.place / self.entry.name, dtype, count, offset=offset)

    def error(self, what: str) -> CheckpointError:
        if isinstance(self.place, StoredFiles):
            return self.place.error(self.entry, what)
        return CheckpointError(what, where=str(self.place / self.entry.name), remedy=_REMEDY)


@dataclass(frozen=True)
class _FilePiece:
    file: _File
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    split: bool
    offset: int

    @property
    def stop(self) -> int:
        return self.start + (self.shape[0] if self.shape else 1)


class TensorReader:
    """A reader of the files that `write_tensors` wrote; joins tensors that were split.

    The constructor reads the headers only. It raises CheckpointError, which names the file, for a file that
    is missing, truncated or not a safetensors file, and for a tensor whose parts overlap or leave a gap. No
    file of a folder is kept open; several threads may call. `directory` is a folder or its like in a store,
    which also raises StorageError.

    Attributes:
        metadata: metadata given to `write_tensors`, by file name.
    """

    def __init__(self, directory: Path | StoredFiles, entries: Iterable[FileEntry]) -> None:
        self._pieces: dict[str, list[_FilePiece]] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        for entry in entries:
            self._index(_File(directory, entry))
        for name, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: piece.start)
            self._check(name, pieces)

    @property
    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor.

        Raises CheckpointError if there is no tensor of that name.
        """
        pieces = self._find(name)
        return (pieces[-1].stop, *pieces[0].shape[1:]) if pieces[0].shape else ()

    def places(self, name: str) -> list[tuple[str, int, int]]:
        """List a tensor's parts in order: file, first row, one past the last.

        Raises CheckpointError if there is no tensor of that name.
        """
        return [(piece.file.entry.name, piece.start, piece.stop) for piece in self._find(name)]

    def read(self, name: str) -> NDArray[Any]:
        """Read the whole tensor into a new array.

        Raises CheckpointError if there is no such tensor or its file cannot be read.
        """
        shape = self.shape(name)
        if shape:
            return self.read_rows(name, 0, shape[0])
        return _read_piece(self._find(name)[0], name, None)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows `start` to `stop` (first axis) of a tensor.

        No other rows are read. Raises CheckpointError if there is no such tensor or its file cannot be read,
        ValueError if the tensor has no such rows.
        """
        pieces = self._find(name)
        shape = self.shape(name)
        if not shape or not 0 <= start <= stop <= shape[0]:
            raise ValueError(f"tensor {name} of shape {shape} has no rows {start} to {stop}")
        overlapping = [piece for piece in pieces if piece.start < stop and start < piece.stop]
        if len(overlapping) == 1:
            piece = overlapping[0]
            return _read_piece(piece, name, slice(start - piece.start, stop - piece.start))
        result = np.empty((stop - start, *shape[1:]), pieces[0].dtype)
        for piece in overlapping:
            low, high = max(start, piece.start), min(stop, piece.stop)
            rows = slice(low - piece.start, high - piece.start)
            result[low - start : high - start] = _read_piece(piece, name, rows)
        return result

    def _find(self, name: str) -> list[_FilePiece]:
        if name not in self._pieces:
            raise CheckpointError(
                f"the checkpoint has no tensor {name}", remedy="use a checkpoint of a job with this model"
            )
        return self._pieces[name]

    def _index(self, file: _File) -> None:
        metadata, forms = file.header()
        try:
            ranges = json.loads(metadata.pop(ROWS_KEY, "{}"))
            for name, form in forms.items():
                start, stop = ranges.get(name, (0, form.shape[0] if form.shape else 1))
                piece = _FilePiece(file, int(start), form.shape, form.dtype, name in ranges, form.offset)
                if piece.stop != stop:
                    raise ValueError(f"tensor {name} does not have the rows that its file states")
                self._pieces.setdefault(name, []).append(piece)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unreadable(file, error) from error
        self.metadata[file.entry.name] = metadata

    @staticmethod
    def _check(name: str, pieces: list[_FilePiece]) -> None:
        expected = 0
        for piece in pieces:
            whole = piece.split or len(pieces) == 1
            alike = piece.shape[1:] == pieces[0].shape[1:] and piece.dtype == pieces[0].dtype
            if not (whole and alike and piece.start == expected):
                raise piece.file.error(
                    f"the parts of tensor {name} do not fit together (row {expected} is next)"
                )
            expected = piece.stop


def _read_piece(piece: _FilePiece, name: str, rows: slice | None) -> NDArray[Any]:
    # Not by safe_open, which parses the header of all tensors again for each of them.
    first, shape = (
        (0, piece.shape) if rows is None else (rows.start, (rows.stop - rows.start, *piece.shape[1:]))
    )
    offset = piece.offset + first * math.prod(piece.shape[1:]) * piece.dtype.itemsize
    count = math.prod(shape)
    try:
        values = piece.file.array(piece.dtype, count, offset)
    except OSError as error:
        raise _unreadable(piece.file, error) from error
    if len(values) != count:
        raise _unreadable(piece.file, ValueError(f"it ends within tensor {name}"))
    return values.reshape(shape)


def _header_of(path: Path) -> tuple[dict[str, str], dict[str, TensorForm]]:
    """Read the header of a file in a folder."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            forms = {name: (tuple(s.get_shape()), DTYPES[s.get_dtype()]) for name, s in slices.items()}
        offsets = _offsets_of(path)
        return metadata, {name: TensorForm(*form, offsets[name]) for name, form in forms.items()}
    except FileNotFoundError as error:
        raise CheckpointError("the file is missing", where=str(path), remedy=_REMEDY) from error
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"the file cannot be read ({error})"
        raise CheckpointError(what, where=str(path), remedy=_REMEDY) from error


def _offsets_of(path: Path) -> dict[str, int]:
    """Return where each tensor begins in a file that `safe_open` has checked."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    begin = 8 + header_bytes
    return {
        name: begin + place["data_offsets"][0] for name, place in header.items() if name != "__metadata__"
    }


def _unreadable(file: _File, error: Exception) -> CheckpointError:
    return file.error(f"the file cannot be read ({error})")
