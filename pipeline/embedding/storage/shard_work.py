"""A checked lookup or push, for one thread or divided over several.

Each of `threads` threads calls `run` with its own number, and processes the rows whose number modulo
`threads` is its own. So no row is read or written by two threads. Results are the same to the bit for any
number of threads. A node sums the bags of its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from ...types import Float32Array, IndexArray, Int32Array
from .bank import BankPart, FirstValues, RowBank


def sum_bags(weights: torch.Tensor, rows: Int32Array, lengths: Int32Array, out: Float32Array) -> None:
    """Sum the rows of each bag in order; an empty bag gives zeros.

    Only the thread that owns the weights may call this.

    Args:
        weights: float32 [rows, dim], contiguous.
        rows: int32 [N], all of them in range, bag after bag.
        lengths: int32 [...]: number of rows of each bag; N in all.
        out: float32, C-contiguous, a vector of dim for each bag.
    """
    if not len(rows):
        out.fill(0.0)
        return
    if not rows.flags.writeable:
        # A received frame is read-only, and torch has no read-only tensors.
        rows = rows.copy()
    flat = lengths.reshape(-1)
    starts = np.zeros(len(flat), np.int32)
    np.cumsum(flat[:-1], out=starts[1:])
    sums = embedding_bag(torch.from_numpy(rows), weights, torch.from_numpy(starts), mode="sum")
    out.reshape(sums.shape)[...] = sums.numpy()


NO_POSITIONS: Int32Array = np.zeros(0, np.int32)


class LookupWork:
    """Copy rows into `out`, float32 [floats], and sum the rows of bags there.

    Args:
        state: where to copy the optimizer state of single rows, float32, a part after the other, as
            `messages.Vectors` has it; None for nowhere.

    Attributes:
        rows: number of rows to look up.
    """

    def __init__(
        self, parts: Sequence[BankPart], out: Float32Array, state: Float32Array | None = None
    ) -> None:
        self.rows = sum(len(part.rows) for part in parts)
        self._parts = parts
        self._states = [None] * len(parts) if state is None else _by_part(parts, state)
        self._targets: list[tuple[Float32Array, Float32Array]] = []
        flat, start = out.reshape(-1), 0
        for part in parts:
            target = flat[start : start + part.share.floats].reshape(-1, part.bank.dim)
            # A bag's rows belong to several threads. Summing this copy keeps the order of the rows.
            bag_rows = np.empty((part.share.bag_rows, part.bank.dim), np.float32)
            self._targets.append((target, bag_rows))
            start += part.share.floats

    def run(self, thread: int, threads: int) -> None:
        """Copy the rows of thread number `thread`, from 0."""
        for part, (out, bag_rows) in zip(self._parts, self._targets, strict=True):
            single, bank = part.share.single, part.bank
            for rows, target in ((part.rows[:single], out[:single]), (part.rows[single:], bag_rows)):
                if len(rows):
                    bank.lookup(
                        rows, target, None if threads == 1 else _positions_of_thread(rows, thread, threads)
                    )
        self._copy_state(thread, threads)

    @property
    def absent(self) -> Int32Array:
        """Return which of all single rows are keys without a row, int32 [A], ascending."""
        start, places = 0, [NO_POSITIONS]
        for part in self._parts:
            if part.first is not None:
                positions = part.first.positions
                places.append((positions[positions < part.share.single] + start).astype(np.int32))
            start += part.share.single
        return np.concatenate(places)

    def _copy_state(self, thread: int, threads: int) -> None:
        for part, state in zip(self._parts, self._states, strict=True):
            rows = part.rows[: part.share.single]
            if state is not None and state.size:
                part.bank.read_state(
                    rows, state, None if threads == 1 else _positions_of_thread(rows, thread, threads)
                )

    def finish(self) -> None:
        """Put first values and sum the bags, after all threads ran.

        Called by one thread.
        """
        for part, (out, bag_rows), state in zip(self._parts, self._targets, self._states, strict=True):
            if part.first is not None:
                _put(part.first, out, bag_rows, part.share.single)
                if state is not None:
                    state[part.first.positions[part.first.positions < part.share.single]] = 0.0
            if part.share.pieces:
                every: Int32Array = np.arange(len(bag_rows), dtype=np.int32)
                with torch.inference_mode():
                    sum_bags(torch.from_numpy(bag_rows), every, part.lengths, out[part.share.single :])
            part.bank.finish(part)


class PushWork:
    """Sum each distinct row's gradients in order, and step it once.

    Args:
        gradients: float32 [floats], of all parts; not changed.
        scale: see `RowOptimizer.step`.
        keys: keys of each part, see `RowStorage.add`.
    """

    def __init__(
        self, parts: Sequence[BankPart], gradients: torch.Tensor, scale: float, keys: Sequence[int]
    ) -> None:
        self._parts = parts
        self._scale = scale
        self._keys = keys
        self._places = [part.positions() for part in parts]
        self._gradients: list[torch.Tensor] = []
        start = 0
        for part in parts:
            target = gradients[start : start + part.share.floats]
            self._gradients.append(target.view(-1, part.bank.dim))
            start += part.share.floats

    def run(self, thread: int, threads: int) -> None:
        """Step the rows of thread number `thread`, from 0."""
        for part, gradients, positions, key in zip(
            self._parts, self._gradients, self._places, self._keys, strict=True
        ):
            rows = part.rows
            if part.first is not None:
                _begin_rows(part.bank, part.first, thread, threads)
            if threads > 1:
                target = _positions_of_thread(rows, thread, threads)
                rows, positions = rows[target], target if positions is None else positions[target]
            part.bank.apply(rows, gradients, positions, self._scale, key)

    def finish(self) -> None:
        """Note, after all threads ran, that the work has ended."""
        for part in self._parts:
            part.bank.finish(part)


ShardWork = LookupWork | PushWork


def _by_part(parts: Sequence[BankPart], state: Float32Array) -> list[Float32Array | None]:
    """Return each part's state, [single rows, floats of a row's state]."""
    states: list[Float32Array | None] = []
    start = 0
    for part in parts:
        size = part.share.single * part.bank.state_floats
        states.append(state[start : start + size].reshape(part.share.single, part.bank.state_floats))
        start += size
    return states


def _put(first: FirstValues, out: Float32Array, bag_rows: Float32Array, single: int) -> None:
    """Put vectors where they belong: single ones into `out`, those of bags into `bag_rows`.

    The positions are ascending and count the single rows first.
    """
    cut = int(np.searchsorted(first.positions, single))
    out[first.positions[:cut]] = first.values[:cut]
    bag_rows[first.positions[cut:] - single] = first.values[cut:]


def _begin_rows(bank: RowBank, first: FirstValues, thread: int, threads: int) -> None:
    rows = (
        slice(None)
        if threads == 1
        else _positions_of_thread(first.positions.astype(np.int32), thread, threads)
    )
    bank.restart(first.positions[rows], first.values[rows])


def _positions_of_thread(rows: Int32Array, thread: int, threads: int) -> IndexArray:
    """Return the positions of a thread's rows: int64, ascending.

    All rows are at least 0.
    """
    numbers = rows.view(np.uint32)
    thread_of_row = (
        numbers & np.uint32(threads - 1) if threads & (threads - 1) == 0 else numbers % np.uint32(threads)
    )
    return np.flatnonzero(thread_of_row == thread)
