"""Writer of a checkpoint's tensor files.

The files have the safetensors format, a bounded size, and a checksum each. The safetensors library does not
write them, because it cannot stream pieces with a running checksum.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import JobFileError
from ..types import is_finite
from .store.contract import PartTarget
from .store.local import LocalStore

ROWS_KEY: Final = "shadowsync.rows"
DEFAULT_LIMIT_BYTES: Final = 256 << 20
PIECE_BYTES: Final = 4 << 20
PARTS: Final = re.compile(r"parts-(\d{6,12})-[0-9a-f]{8}")
"""A prefix for the files of one checkpoint in a storage; in a folder they have none."""

_NAME: Final = re.compile(rf"(?:{PARTS.pattern}/)?[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}")
# Names of types in the safetensors format, which is little-endian throughout.
TYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
DTYPES: Final = {stored: np.dtype(name) for name, stored in TYPES.items()}


class TensorView(Protocol):
    """An array whose form in memory differs from its form in the file.

    Converting a slice converts only that part. One that reads more than it gives, such as rows for one number
    of each, has `read_bytes`, what it reads in all: a few MB of these are converted at a time.
    """

    dtype: np.dtype[Any]
    itemsize: int
    ndim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file; at least one dimension."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> TensorView: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...


Tensor: TypeAlias = NDArray[Any] | TensorView
"""What can be written. A view is converted a few MB at a time."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: name, size, SHA-256, role.

    Raises ValueError for a name with a path, so that no manifest can point outside its folder or store, and
    for an invalid size or SHA-256.
    """

    name: str
    bytes: int
    sha256: str
    role: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a file of a checkpoint has a bare name, not {self.name!r}")
        if self.bytes < 0 or not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{self.name}: its size or its SHA-256 is not valid")


@dataclass(frozen=True)
class _Part:
    """The part of a tensor that goes into one file.

    Attributes:
        start: number of the part's first row in the whole tensor.
        split: whether the tensor is split, so that the file must state the part's rows.
        follows: whether the tensor begins in an earlier file.
    """

    name: str
    values: Tensor
    start: int
    split: bool
    follows: bool = False

    @property
    def header_bytes(self) -> int:
        """Upper bound of the part's bytes in the file's header, row range included."""
        return 2 * len(json.dumps(self.name)) + 24 * self.values.ndim + 160


def write_tensors(
    directory: Path | PartTarget,
    stem: str,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    first_rows: Mapping[str, int] | None = None,
    *,
    finite: bool = False,
) -> list[FileEntry]:
    """Write `tensors` as stem-00000.safetensors, stem-00001.safetensors, ..., each at most `limit_bytes`.

    A larger tensor is split by its first axis over several files. The metadata of each file states its rows,
    and `TensorReader` joins them. `first_rows` is for tensors that are pieces of a larger one, whose other
    pieces other nodes write: it has the number of a piece's first row in the larger tensor.

    `metadata` goes into every file; the role of the entries is metadata["role"], or `stem` without one.
    Writing takes a few MB of memory besides the tensors. Each file appears complete (fsynced, then renamed)
    or not at all, and replaces a file of the same name. Without tensors there is one file with the metadata
    only.

    `directory` is a folder, or a prefix of a store, which the names of the entries then have. Any thread may
    call. If another thread changes a tensor meanwhile, old and new values are written mixed,
    with a checksum that matches them. Raises ResourceError if a file cannot be written (its partial file is
    removed, the files before it stay), ValueError for a type or name that cannot be stored and for a limit
    below one row, StorageError, and with `finite` JobFileError for a number that is not finite. Format:
    https://huggingface.co/docs/safetensors.
    """
    if ROWS_KEY in metadata:
        raise ValueError(f"the metadata key {ROWS_KEY} is taken")
    for name, values in tensors.items():
        if values.dtype.name not in TYPES or not values.dtype.isnative:
            raise ValueError(f"tensor {name}: {values.dtype} cannot be stored")
    role = metadata.get("role", stem)
    target = directory if isinstance(directory, PartTarget) else PartTarget(LocalStore(directory))
    entries = []
    for number, parts in enumerate(_pack(tensors, _room(metadata, limit_bytes), first_rows or {})):
        name = f"{stem}-{number:05d}.safetensors"
        stored = target.put(name, _content(parts, metadata, finite=finite))
        entries.append(FileEntry(stored.name, stored.bytes, stored.sha256, role))
    return entries


def _room(metadata: Mapping[str, str], limit_bytes: int) -> int:
    # 96 bytes are enough for the length, the padding, and the JSON around the metadata and the row ranges.
    return limit_bytes - len(json.dumps(dict(metadata))) - 96


def _pack(
    tensors: Mapping[str, Tensor], room_bytes: int, first_rows: Mapping[str, int]
) -> Iterator[list[_Part]]:
    """Group parts of the tensors into files of at most `room_bytes`.

    Tensors are split into parts where needed; the parts keep their order.
    """
    parts: list[_Part] = []
    left = room_bytes
    for name, values in tensors.items():
        for part in _cut(name, values, room_bytes, first_rows.get(name)):
            cost = part.header_bytes + part.values.nbytes
            if parts and (cost > left or part.follows):
                yield parts
                parts, left = [], room_bytes
            parts.append(part)
            left -= cost
    # Metadata is state too, so it is written even without tensors.
    if parts or not tensors:
        yield parts


def _cut(name: str, values: Tensor, room_bytes: int, first_row: int | None) -> Iterator[_Part]:
    first = first_row or 0
    whole = _Part(name, values, first, split=first_row is not None)
    room = room_bytes - whole.header_bytes
    if values.nbytes <= room:
        yield whole
        return
    row_bytes = values.nbytes // max(1, len(values)) if values.ndim else values.nbytes
    if row_bytes > room:
        raise ValueError(f"tensor {name}: a row of {row_bytes} bytes does not fit the limit of a file")
    rows = room // row_bytes
    for start in range(0, len(values), rows):
        yield _Part(name, values[start : start + rows], first + start, split=True, follows=start > 0)


def _content(parts: list[_Part], metadata: Mapping[str, str], *, finite: bool) -> Iterator[bytes]:
    """Yield the bytes of a file, a few MB at a time."""
    # The widest types come first, so that every tensor is aligned. The safetensors library does the same.
    ordered = sorted(parts, key=lambda part: (-part.values.itemsize, part.name))
    tensors = chain.from_iterable(_pieces(part, finite=finite) for part in ordered)
    return chain((_header(ordered, metadata),), tensors)


def _header(parts: list[_Part], metadata: Mapping[str, str]) -> bytes:
    """Build a file's header: length (8 bytes), JSON, padding to a multiple of 8."""
    ranges = {part.name: [part.start, part.start + len(part.values)] for part in parts if part.split}
    extra = {ROWS_KEY: json.dumps(ranges)} if ranges else {}
    described: dict[str, Any] = {"__metadata__": {**metadata, **extra}}
    offset = 0
    for part in parts:
        if part.name in described:
            raise ValueError(f"a tensor cannot be called {part.name}")
        end = offset + part.values.nbytes
        kind = TYPES[part.values.dtype.name]
        described[part.name] = {
            "dtype": kind,
            "shape": list(part.values.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _pieces(part: _Part, *, finite: bool) -> Iterator[bytes]:
    """Yield the bytes of a part in row-major order.

    Each piece has a few MB. It is a copy, because a worker may change a replica after the checksum of a
    piece and before the piece is written.
    """
    for piece in _arrays(part.values):
        # Here, because the piece is still in the CPU's cache.
        if finite and piece.dtype.kind == "f" and not is_finite(piece):
            raise JobFileError(
                f"tensor {part.name} has numbers that are not finite",
                remedy="lower the learning rates: of a job embedding.lr and trainer.lr, of attached loops and"
                " shadowsync.Embeddings their own",
            )
        yield piece.tobytes()


def _arrays(values: Tensor) -> Iterator[NDArray[Any]]:
    if values.nbytes == 0:
        return
    if not isinstance(values, np.ndarray) or not values.flags.c_contiguous:
        rows = max(1, PIECE_BYTES * len(values) // getattr(values, "read_bytes", values.nbytes))
        for start in range(0, len(values), rows):
            yield np.asarray(values[start : start + rows])
        return
    flat = values.reshape(-1)
    count = PIECE_BYTES // values.itemsize
    for start in range(0, len(flat), count):
        yield flat[start : start + count]
