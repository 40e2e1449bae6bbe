"""Lists of ids as bags, and the weights of their items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...types import Float32Array, Float64Array, IndexArray, Int32Array, Mask, Uint64Array
from .fields import TextRules, hash_ids, is_text, null_mask


@dataclass(frozen=True, slots=True)
class ItemLists:
    """A column of lists: n lists with M items together, missing items included.

    Attributes:
        items: the cleaned items, one list after the other; null where missing.
        lengths: int64 [n], number of items of each list.
    """

    items: Any
    lengths: IndexArray

    @classmethod
    def of(cls, column: pa.Array, rules: TextRules, delimiter: str) -> ItemLists:
        """Return the lists of a cleaned column of delimited texts or lists.

        Null is an empty list.
        """
        if pa.types.is_null(column.type):
            return cls(pa.nulls(0), np.zeros(len(column), np.int64))
        if is_text(column.type):
            column = pc.split_pattern(column, delimiter)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        return cls(rules.clean(column.flatten()), lengths.astype(np.int64))

    @property
    def owners(self) -> IndexArray:
        """Return the list of each item, int64 [M]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def begins(self) -> IndexArray:
        """Return where each list begins, int64 [n]."""
        begins: IndexArray = np.cumsum(self.lengths) - self.lengths
        return begins


@dataclass(frozen=True, slots=True)
class IdBags:
    """The bags of a column of ids.

    Attributes:
        lists: all ids.
        included: bool [M]: which of them are in a bag. Missing ids are dropped, and of the others a bag has
            the first `max_ids`, or the last.
    """

    lists: ItemLists
    included: Mask

    @classmethod
    def of(
        cls, column: pa.Array, rules: TextRules, *, delimiter: str, max_ids: int, keeps_last: bool = False
    ) -> IdBags:
        """Return the bags of a cleaned column, see `ItemLists.of`."""
        lists = ItemLists.of(column, rules, delimiter)
        included = ~null_mask(lists.items)
        before = np.concatenate([[0], np.cumsum(included)])
        if keeps_last:
            ends = before[lists.begins + lists.lengths][lists.owners]
            included &= ends - before[:-1] <= max_ids
        else:
            included &= before[:-1] - before[lists.begins][lists.owners] < max_ids
        return cls(lists, included)

    def hashes(self, number: int) -> tuple[Uint64Array, Int32Array]:
        """Return hashes uint64 [N] and lengths int32 [n]; `number` is the hash's `column`."""
        lengths = self._per_list(self.included).astype(np.int32)
        if not len(self.included):
            return np.zeros(0, np.uint64), lengths
        return hash_ids(self.lists.items.filter(pa.array(self.included)), number), lengths

    def weights(self, column: pa.Array, rules: TextRules, delimiter: str) -> ItemWeights:
        """Return the weights of the ids.

        The cleaned `column` has lists with a number for each id, dropped ids included.
        """
        weights = ItemLists.of(column, rules, delimiter)
        unlike: Mask = weights.lengths != self.lists.lengths
        owners = self.lists.owners[self.included]
        # Places among the weights; those of unlike lists may be beyond them.
        places = np.flatnonzero(self.included) + (weights.begins - self.lists.begins)[owners]
        numbers = np.where(null_mask(weights.items), np.nan, rules.numbers(weights.items))
        values = np.zeros(len(owners))
        fits = ~unlike[owners]
        values[fits] = numbers[places[fits]]
        return ItemWeights(values, owners, unlike)

    def _per_list(self, which: Mask) -> IndexArray:
        counts: IndexArray = np.bincount(self.lists.owners[which], minlength=len(self.lists.lengths))
        return counts


@dataclass(frozen=True, slots=True)
class ItemWeights:
    """The weights of the ids of n bags.

    Attributes:
        values: float64 [N]; NaN for one that is missing or no finite number, 0 in an unlike list.
        owners: int64 [N], the bag of each.
        unlike: bool [n]: which rows have another number of weights than ids.
    """

    values: Float64Array
    owners: IndexArray
    unlike: Mask

    def rows_where(self, which: Mask) -> Mask:
        """Return bool [n]: which bags have a weight with `which`, bool [N]."""
        rows = np.zeros(len(self.unlike), np.bool_)
        rows[self.owners[which]] = True
        return rows

    def usable(self, most: float) -> Float32Array:
        """Return the weights, float32 [N]; 0 where not from 0 to `most`."""
        good = (self.values >= 0) & (self.values <= most)
        return np.where(good, self.values, 0.0).astype(np.float32)
