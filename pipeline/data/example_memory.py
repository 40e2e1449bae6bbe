"""Memory for shuffling that is used again and again: fresh pages cost more than what is written to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Int32Array
from .bags import Bags
from .schema import Examples


class WindowMemory:
    """Shuffles one window after the other in the same arrays, which grow to the most that was asked for.

    Scratch memory of one owner, no pool: nothing of it is given to anyone.

    One thread. In memory: the window's rows of tables once, its labels and numbers once where it has several
    parts, and two columns.
    """

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[Any]] = {}

    def shuffled(
        self, parts: Sequence[Examples], order: NDArray[np.intp], *, lead: int, batch: int
    ) -> Iterator[Examples]:
        """The examples of all parts that `order` names, each from 0 to their number - 1 (not checked), in
        that order: first `lead` of them (none where it is 0), then `batch` at a time; the last may be fewer.

        What is given is C-contiguous, and its arrays are its own. `parts` must not be empty; this memory is
        in use until the iterator has ended.
        """
        lead = min(lead, len(order))
        labels = self._joined("labels", [part.labels for part in parts])
        dense = self._joined("dense", [part.dense for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        bags = Bags.join([part.bags for part in parts]) if len(parts[0].bags.lengths) else parts[0].bags
        start = 0
        for rows in self._rows(parts, order, lead, batch):
            here = order[start : start + rows.shape[1]]
            start += len(here)
            yield Examples(
                labels.take(here),
                dense.take(here, axis=0),
                rows.copy(),
                weights.take(here) if len(weights) else weights,
                bags.take(here) if len(bags.lengths) else bags,
            )

    def _rows(
        self, parts: Sequence[Examples], order: NDArray[np.intp], lead: int, batch: int
    ) -> list[Int32Array]:
        """int32 [T, n] of each piece, in this memory."""
        tables, count = len(parts[0].rows), len(order)
        whole = (count - lead) // batch
        stop = lead + whole * batch
        blocks, column, picked = (
            self._array(name, np.dtype(np.int32), size)
            for name, size in (("blocks", tables * count), ("column", count), ("picked", count))
        )
        first = blocks[: tables * lead].reshape(tables, lead)
        middle = blocks[tables * lead : tables * stop].reshape(whole, tables, batch)
        last = blocks[tables * stop :].reshape(tables, count - stop)
        for table in range(tables):
            # Table after table, so that its column stays in the cache from the parts to the batches.
            np.concatenate([part.rows[table] for part in parts], out=column)
            # With another mode numpy would write to an array of its own first.
            column.take(order, out=picked, mode="clip")
            first[table] = picked[:lead]
            middle[:, table] = picked[lead:stop].reshape(whole, batch)
            last[table] = picked[stop:]
        return [piece for piece in (first, *middle, last) if piece.shape[1]]

    def _joined(self, name: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if len(parts) == 1:
            return parts[0]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        into = self._array(name, parts[0].dtype, int(np.prod(shape))).reshape(shape)
        np.concatenate(parts, out=into)
        return into

    def _array(self, name: str, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            flat = self._flat[name] = np.empty(size, dtype)
        return flat[:size]
