"""The index of `id_index.py`, compiled by Numba: the extra `fast`.

Open addressing with linear probing, so a longer search stays in its cache line, and bits of the key in the
bits of a place that a row's number leaves, so a search seldom reads the key of another row. What a search
reads is asked for some keys ahead, and reads from memory overlap. Imports Numba, and so is imported only
where an index is made. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import int32, int64, njit, types, uint8, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from ...types import Int32Array, Uint64Array
from .id_index import ABSENT

_SMALLEST: Final = 1024
_PLACES_A_KEY: Final = 3
# Memory answers within so many searches: of 8 to 64, 16 to 32 were the fastest.
_AHEAD: Final = 24
_NOTHING: Final[NDArray[np.uint8]] = np.zeros(0, np.uint8)


class CompiledIdIndex:
    """`IdIndex`, compiled. Makes the same answers; other Python threads run meanwhile.

    Searches are short as long as the low bits of keys are well mixed: no step depends on other bits.

    Args:
        keys: see `IdIndex`.
    """

    def __init__(self, keys: Uint64Array) -> None:
        self._keys = keys
        # A row's number plus one in the low bits, the high bits of its key above; 0 is a free place.
        self._places: NDArray[np.uint32] = np.zeros(_SMALLEST, np.uint32)
        self._row_bits = len(keys).bit_length()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return self._places.nbytes

    def find(self, keys: Uint64Array, used_next: NDArray[Any] | None = None) -> Int32Array:
        """Return the row of each key, int32 [N]; ABSENT where there is none.

        `used_next` is memory [rows, ...], C-contiguous: the cache line where a found row begins there is
        asked for.
        """
        rows = np.full(len(keys), ABSENT, np.int32)
        if len(self._keys):
            memory = _NOTHING if used_next is None else used_next.reshape(-1).view(np.uint8)
            _find(self._places, self._row_bits, self._keys, memory, np.ascontiguousarray(keys), rows)
        return rows

    def add(self, rows: Int32Array) -> None:
        """Add rows by their keys, which are distinct and not in the index."""
        self._count += len(rows)
        size = len(self._places)
        while _PLACES_A_KEY * self._count > size:
            size *= 2
        if size > len(self._places):
            earlier, self._places = self._places, np.zeros(size, np.uint32)
            _move(earlier, self._places, self._row_bits, self._keys)
        _add(self._places, self._row_bits, self._keys, np.ascontiguousarray(rows))

    def remove(self, rows: Int32Array) -> None:
        """Remove rows, which are distinct and in the index; raises KeyError for another one."""
        removed = _remove(self._places, self._row_bits, self._keys, np.ascontiguousarray(rows))
        self._count -= removed
        if removed < len(rows):
            raise KeyError(f"row {rows[removed]} is not in the index")


def _ask_for(context: Any, array: Any, place: Any) -> Any:  # noqa: ARG001
    """Ask for the cache line of `array[place]`; does nothing if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        # To read, kept in all caches, of data.
        builder.call(prefetch, [address, *(ir.Constant(number, word) for word in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, place), generate


_fetch: Final = intrinsic(_ask_for)


def _compiled(*signature: Any) -> Callable[[Any], Any]:
    """Compile a function for these types now, and keep its code where there is a folder for it."""

    def compile_now(function: Any) -> Any:
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            # Neither the package's folder nor the user's can be written.
            return njit(signature, nogil=True)(function)

    return compile_now


_PLACES: Final = uint32[::1]
_KEYS: Final = uint64[::1]
_ROWS: Final = int32[::1]
# Received keys are read-only, and lie where their frame has them.
_RECEIVED: Final = types.Array(uint64, 1, "C", readonly=True, aligned=False)


@_compiled(_PLACES, int64, _KEYS, uint64)
def _search(places: Any, row_bits: Any, row_keys: Any, key: Any) -> Any:
    """Return the row of a key, reading the keys of all rows on the way."""
    mask, low = uint64(len(places) - 1), uint32((1 << row_bits) - 1)
    place = key & mask
    while places[place] != 0:
        row = uint64(places[place] & low) - uint64(1)
        if row_keys[row] == key:
            return int64(row)
        place = (place + uint64(1)) & mask
    return int64(ABSENT)


@_compiled(_PLACES, int64, _KEYS, uint8[::1], _RECEIVED, _ROWS)
def _find(places: Any, row_bits: Any, row_keys: Any, used_next: Any, keys: Any, rows: Any) -> Any:
    mask, low = uint64(len(places) - 1), uint32((1 << row_bits) - 1)
    above, shift = uint32(row_bits), uint64(32 + row_bits)
    row_bytes, count = len(used_next) // len(row_keys), len(keys)
    for number in range(min(_AHEAD, count)):
        _fetch(places, keys[number] & mask)
    for number in range(count + _AHEAD):
        if number + _AHEAD < count:
            _fetch(places, keys[number + _AHEAD] & mask)
        if number < count:
            place, tag = keys[number] & mask, uint32(keys[number] >> shift)
            while places[place] != 0 and places[place] >> above != tag:
                place = (place + uint64(1)) & mask
            row = int64(places[place] & low) - 1
            rows[number] = row
            if row >= 0:
                _fetch(row_keys, row)
                if row_bytes:
                    _fetch(used_next, row * row_bytes)
        # By now the key of the row is in the cache.
        earlier = number - _AHEAD
        if earlier >= 0 and rows[earlier] >= 0 and row_keys[rows[earlier]] != keys[earlier]:
            rows[earlier] = _search(places, row_bits, row_keys, keys[earlier])


@_compiled(_PLACES, int64, _KEYS, _ROWS)
def _add(places: Any, row_bits: Any, row_keys: Any, rows: Any) -> Any:
    mask, above, shift = uint64(len(places) - 1), uint32(row_bits), uint64(32 + row_bits)
    for number in range(len(rows)):
        if number + _AHEAD < len(rows):
            _fetch(places, row_keys[rows[number + _AHEAD]] & mask)
        key = row_keys[rows[number]]
        place = key & mask
        while places[place] != 0:
            place = (place + uint64(1)) & mask
        places[place] = (uint32(key >> shift) << above) | uint32(rows[number] + 1)


@_compiled(_PLACES, _PLACES, int64, _KEYS)
def _move(earlier: Any, places: Any, row_bits: Any, row_keys: Any) -> Any:
    """Add all rows of `earlier` to larger places."""
    row, low = np.empty(1, np.int32), uint32((1 << row_bits) - 1)
    for entry in earlier:
        if entry != 0:
            row[0] = int64(entry & low) - 1
            _add(places, row_bits, row_keys, row)


@_compiled(_PLACES, int64, _KEYS, _ROWS)
def _remove(places: Any, row_bits: Any, row_keys: Any, rows: Any) -> Any:
    """Free the places of rows, and move those behind that searches would no longer find.

    It is Knuth's algorithm R, so no removed row stays behind. Returns how many rows were removed: all, or
    those before the first one that is not here.
    """
    mask, low = uint64(len(places) - 1), uint32((1 << row_bits) - 1)
    for number in range(len(rows)):
        entry = uint32(rows[number] + 1)
        place = row_keys[rows[number]] & mask
        while places[place] & low != entry:
            if places[place] == 0:
                return number
            place = (place + uint64(1)) & mask
        behind = (place + uint64(1)) & mask
        while places[behind] != 0:
            home = row_keys[uint64(places[behind] & low) - uint64(1)] & mask
            # From its home on a search for it comes to the free place first.
            if (behind - home) & mask >= (behind - place) & mask:
                places[place] = places[behind]
                place = behind
            behind = (behind + uint64(1)) & mask
        places[place] = 0
    return len(rows)
