"""The vectors of bags, summed where their rows are.

A lookup or a push that was checked, to be done by one thread or shared out over several.

Each of `lanes` threads calls `run` with a lane of its own, and sees to the rows whose number modulo `lanes`
is its lane: no row is read or written by two. What comes out is the same to the bit, however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from ...types import Float32Array, IndexArray, Int32Array
from ..lookup.request import BankShare
from .bank import RowBank


def sum_bags(weights: torch.Tensor, rows: Int32Array, lengths: Int32Array, out: Float32Array) -> None:
    """Sums the rows of each bag, in their order; an empty bag gives zeros.

    Args:
        weights: float32 [rows, dim], contiguous.
        rows: int32 [N], all of them in range, bag after bag.
        lengths: int32 [...]: how many rows each bag has; N in all.
        out: float32, C-contiguous, a vector of dim for each bag.

    The thread that owns the weights may call it.
    """
    if not len(rows):
        out.fill(0.0)
        return
    if not rows.flags.writeable:
        # torch has no read-only tensors, and a received frame is one.
        rows = rows.copy()
    flat = lengths.reshape(-1)
    starts = np.zeros(len(flat), np.int32)
    np.cumsum(flat[:-1], out=starts[1:])
    sums = embedding_bag(torch.from_numpy(rows), weights, torch.from_numpy(starts), mode="sum")
    out.reshape(sums.shape)[...] = sums.numpy()


@dataclass(frozen=True, slots=True)
class BankPart:
    """One bank with its part of a request, all of it checked.

    Attributes:
        rows: int32 [N]: the single ones, then those of bags.
        lengths: int32 [P, B]: how many rows each bag has.
    """

    bank: RowBank
    share: BankShare
    rows: Int32Array
    lengths: Int32Array

    def places(self) -> IndexArray | None:
        """int64 [N]: which gradient each row gets; None for one each, in order."""
        if not self.share.pieces:
            return None
        bags = np.repeat(np.arange(self.lengths.size, dtype=np.int64), self.lengths.reshape(-1))
        return np.concatenate([np.arange(self.share.single, dtype=np.int64), self.share.single + bags])


class LookupWork:
    """Copies rows into `out`, float32 [floats], and sums those of bags there.

    Attributes:
        rows: how many are looked up.
    """

    def __init__(self, parts: Sequence[BankPart], out: Float32Array) -> None:
        self.rows = sum(len(part.rows) for part in parts)
        self._parts = parts
        self._targets: list[tuple[Float32Array, Float32Array]] = []
        flat, at = out.reshape(-1), 0
        for part in parts:
            own = flat[at : at + part.share.floats].reshape(-1, part.bank.dim)
            # A bag's rows are in several lanes, and are summed in their order all the same: from here.
            bag_rows = np.empty((part.share.bag_rows, part.bank.dim), np.float32)
            self._targets.append((own, bag_rows))
            at += part.share.floats

    def run(self, lane: int, lanes: int) -> None:
        """The part of one lane."""
        for part, (out, bag_rows) in zip(self._parts, self._targets, strict=True):
            single, bank = part.share.single, part.bank
            for rows, target in ((part.rows[:single], out[:single]), (part.rows[single:], bag_rows)):
                if len(rows):
                    bank.lookup(rows, target, None if lanes == 1 else _positions_of_thread(rows, lane, lanes))

    def finish(self) -> None:
        """To be called by one thread when all lanes have run."""
        for part, (out, bag_rows) in zip(self._parts, self._targets, strict=True):
            if part.share.pieces:
                every: Int32Array = np.arange(len(bag_rows), dtype=np.int32)
                with torch.inference_mode():
                    sum_bags(torch.from_numpy(bag_rows), every, part.lengths, out[part.share.single :])


class PushWork:
    """Sums the gradients of each distinct row, in the order given, and lets its optimizer step it once.

    Args:
        gradients: float32 [floats], of all parts; not changed.
        scale: see `RowOptimizer.step`.
        keys: for each part, see `RowStorage.add`.
    """

    def __init__(
        self, parts: Sequence[BankPart], gradients: torch.Tensor, scale: float, keys: Sequence[int]
    ) -> None:
        self._parts = parts
        self._scale = scale
        self._keys = keys
        self._places = [part.places() for part in parts]
        self._gradients: list[torch.Tensor] = []
        at = 0
        for part in parts:
            own = gradients[at : at + part.share.floats]
            self._gradients.append(own.view(-1, part.bank.dim))
            at += part.share.floats

    def run(self, lane: int, lanes: int) -> None:
        """The part of one lane."""
        for part, gradients, places, key in zip(
            self._parts, self._gradients, self._places, self._keys, strict=True
        ):
            rows = part.rows
            if lanes > 1:
                own = _positions_of_thread(rows, lane, lanes)
                rows, places = rows[own], own if places is None else places[own]
            part.bank.apply(rows, gradients, places, self._scale, key)

    def finish(self) -> None:
        """Nothing is left to do."""


ShardWork = LookupWork | PushWork


def _positions_of_thread(rows: Int32Array, lane: int, lanes: int) -> IndexArray:
    """Which of the rows, all of them at least 0, are a lane's: int64, ascending."""
    numbers = rows.view(np.uint32)
    of_lane = numbers & np.uint32(lanes - 1) if lanes & (lanes - 1) == 0 else numbers % np.uint32(lanes)
    return np.flatnonzero(of_lane == lane)
