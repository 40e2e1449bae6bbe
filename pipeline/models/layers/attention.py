"""Causal self-attention within lists of different lengths, without the cost of padding all to the longest.

On a CPU, torch 2.13 has no causal attention of nested tensors, which would do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from ...types import IndexArray

SHORT: Final = 16
"""Lists of at most so many vectors are computed together."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lists that are computed together, padded to the longest of them.

    Attributes:
        lists: their number.
        longest: vectors of the longest.
        vectors: number of vectors of all.
        places: place of each of these in the block, int64 [vectors]; None if all lists are of one length.
    """

    lists: int
    longest: int
    vectors: int
    places: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ListBlocks:
    """The vectors of lists by blocks of similar length, each list by time.

    A block has the lists of more than n / 2 and at most n vectors, for each power n of 2 above `SHORT`, so
    less than half of it is padding; and one has all shorter lists. Empty lists are in none.

    Attributes:
        blocks: one behind the other.
        order: number of each vector in the jagged sequence, int64 [N].
        ages: how many later vectors its list has, int64 [N].
        last: where the latest vector of each list is, int64 [B]; 0 for an empty list.
    """

    blocks: tuple[Block, ...]
    order: torch.Tensor
    ages: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, lengths: torch.Tensor, *, latest_first: bool) -> ListBlocks:
        """Return those of lists with these lengths, int64 [B]; on a device, the host waits for them.

        `latest_first` says that a list begins with its latest vector.
        """
        sizes: IndexArray = lengths.cpu().numpy()
        begins = np.cumsum(sizes) - sizes
        # The exponent of the power of 2; -1 for empty lists.
        kinds = np.where(sizes > 0, np.ceil(np.log2(np.clip(sizes, SHORT, None))).astype(np.int64), -1)
        blocks, orders, ages = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        last, start = np.zeros(len(sizes), np.int64), 0
        for kind in np.unique(kinds[kinds >= 0]):
            numbers = np.flatnonzero(kinds == kind)
            list_sizes = sizes[numbers]
            ends, longest = np.cumsum(list_sizes), int(list_sizes.max())
            owners = np.repeat(np.arange(len(list_sizes)), list_sizes)
            places = np.arange(len(owners)) - (ends - list_sizes)[owners]
            ages.append(list_sizes[owners] - 1 - places)
            orders.append(begins[numbers][owners] + (ages[-1] if latest_first else places))
            last[numbers] = start + ends - 1
            start += len(owners)
            is_even = len(owners) == len(list_sizes) * longest
            padded = None if is_even else torch.from_numpy(owners * longest + places).to(lengths.device)
            blocks.append(Block(len(list_sizes), longest, len(owners), padded))
        arrays = (np.concatenate(orders), np.concatenate(ages), last)
        return cls(tuple(blocks), *(torch.from_numpy(array).to(lengths.device) for array in arrays))


def attend(projected: torch.Tensor, blocks: Sequence[Block], heads: int) -> torch.Tensor:
    """Return what each vector sees of those up to itself in its list, [N, K].

    Args:
        projected: queries, keys and values of the vectors of all blocks, side by side, [N, 3 K].
        blocks: those of `ListBlocks`.
        heads: number of heads, a divisor of K.
    """
    sizes = [block.vectors for block in blocks]
    parts = [
        _of_block(part, block, heads)
        for part, block in zip(torch.split(projected, sizes), blocks, strict=True)
    ]
    return torch.cat(parts) if parts else projected[:, : projected.shape[1] // 3]


def attend_padded(projected: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the same of padded lists, [B, L, K] of [B, L, 3 K]; what is behind a list has no meaning."""
    batch, longest, width = projected.shape
    split = projected.view(batch, longest, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind(0)
    # A list's vectors see none of the padding, which is behind them.
    seen = scaled_dot_product_attention(query, key, value, is_causal=True)
    return seen.transpose(1, 2).reshape(batch, longest, width // 3)


def _of_block(projected: torch.Tensor, block: Block, heads: int) -> torch.Tensor:
    """Return [n, K] of [n, 3 K]."""
    width, size = projected.shape[1], block.lists * block.longest
    padded = projected
    if block.places is not None:
        padded = projected.new_zeros(size, width).index_copy(0, block.places, projected)
    seen = attend_padded(padded.view(block.lists, block.longest, width), heads).view(size, width // 3)
    return seen if block.places is None else seen.index_select(0, block.places)
