"""How the rows of all tables are split over the embedding nodes. Knows no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import JobFileError

ROWS_LIMIT = 2**31
"""Rows of one node are numbered by int32 on the wire."""


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of `table`, kept at [offset, offset + stop - start) of the node's flat store."""

    table: int
    start: int
    stop: int
    node: int
    offset: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class TablePlan:
    """A split that covers every row once. A pure function of what `make` is given.

    Attributes:
        table_rows: rows of each table.
        dim: floats in a row.
        nodes: how many embedding nodes there are.
        pieces: by node, then by offset; on a node the whole tables come first, in the order of tables,
            then its pieces of split tables, at most one of each table.
    """

    table_rows: tuple[int, ...]
    dim: int
    nodes: int
    pieces: tuple[Piece, ...]

    @classmethod
    def make(cls, table_rows: Sequence[int], dim: int, nodes: int) -> TablePlan:
        """Splits tables that have more rows than a node's fair share, and keeps the others whole.

        Whole tables are placed first, the largest first, where the larger of the node's two loads (its share
        of all rows and of all lookups: each table costs one lookup an example, however small it is) stays
        least. Then the large tables fill the nodes up to a level, cut as seldom as that allows, so that there
        are at most `nodes - 1` more pieces than tables. Each lookup of a split table still goes to one node.

        Raises:
            JobFileError: fewer rows than nodes, or more rows for a node than an int32 can number.
        """
        rows = tuple(int(count) for count in table_rows)
        if not rows or min(rows) < 1 or dim < 1 or nodes < 1:
            raise ValueError(f"no plan for tables of {rows} rows, {dim} wide, over {nodes} nodes")
        if sum(rows) < nodes:
            raise JobFileError(
                f"{nodes} nodes for {sum(rows)} rows in all tables",
                where="embedding.nodes",
                remedy=f"give at most {sum(rows)}",
            )
        homes, held = _place_whole(rows, nodes)
        large = [table for table, home in enumerate(homes) if home is None]
        ranges = _cut(rows, large, _shares(held, sum(rows[table] for table in large)))
        plan = cls(rows, dim, nodes, _laid_out(rows, homes, ranges, nodes))
        fullest = max(plan.rows_of(node) for node in range(nodes))
        if fullest >= ROWS_LIMIT:
            raise JobFileError(
                f"{fullest:,} rows for one node, which can number {ROWS_LIMIT - 1:,}",
                where="embedding.nodes",
                remedy=f"give more than {nodes}, or lower model.table_rows",
            )
        return plan

    @cached_property
    def _by_node(self) -> tuple[tuple[Piece, ...], ...]:
        return tuple(tuple(p for p in self.pieces if p.node == node) for node in range(self.nodes))

    def pieces_of(self, node: int) -> tuple[Piece, ...]:
        """The pieces that `node` keeps, by offset."""
        return self._by_node[node]

    def rows_of(self, node: int) -> int:
        """Rows in the flat store of `node`."""
        return sum(len(piece) for piece in self._by_node[node])

    def is_whole(self, piece: Piece) -> bool:
        """Whether the piece is a whole table."""
        return len(piece) == self.table_rows[piece.table]

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the plan: nodes with different digests would answer with wrong rows."""
        pieces = [[p.table, p.start, p.stop, p.node, p.offset] for p in self.pieces]
        text = json.dumps([list(self.table_rows), self.dim, self.nodes, pieces], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _place_whole(rows: tuple[int, ...], nodes: int) -> tuple[list[int | None], list[int]]:
    """The node of each table that stays whole (None for the others), and the rows each node then has."""
    total = sum(rows)
    homes: list[int | None] = [None] * len(rows)
    held, lookups = [0] * nodes, [0] * nodes
    for table in sorted(range(len(rows)), key=lambda table: (-rows[table], table)):
        size = rows[table]
        if size * nodes > total:
            continue
        loads = [
            # Both shares over one denominator, in integers: the plan must not hang on rounding.
            sorted(((held[n] + size) * len(rows), (lookups[n] + 1) * total), reverse=True)
            for n in range(nodes)
        ]
        home = min(range(nodes), key=lambda n: (loads[n], n))
        homes[table] = home
        held[home] += size
        lookups[home] += 1
    return homes, held


def _shares(held: list[int], rows: int) -> list[int]:
    """How many of `rows` each node gets, so that all that get any end at one level (but for 1)."""
    shares = [0] * len(held)
    order = sorted(range(len(held)), key=lambda node: (held[node], node))
    filled = 0
    for count, node in enumerate(order, start=1):
        filled += held[node]
        level, rest = divmod(rows + filled, count)
        if count == len(order) or level < held[order[count]]:
            for place, receiver in enumerate(order[:count]):
                shares[receiver] = level - held[receiver] + (1 if place < rest else 0)
            break
    return shares


def _cut(rows: tuple[int, ...], large: list[int], shares: list[int]) -> list[tuple[int, int, int, int]]:
    """Cuts the large tables along the nodes' shares: (table, start, stop, node)."""
    ranges: list[tuple[int, int, int, int]] = []
    node, left = 0, shares[0]
    for table in large:
        start = 0
        while start < rows[table]:
            while left == 0:
                node += 1
                left = shares[node]
            stop = min(rows[table], start + left)
            ranges.append((table, start, stop, node))
            left -= stop - start
            start = stop
    return ranges


def _laid_out(
    rows: tuple[int, ...], homes: list[int | None], ranges: list[tuple[int, int, int, int]], nodes: int
) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for node in range(nodes):
        whole = [(table, 0, rows[table]) for table, home in enumerate(homes) if home == node]
        cut = [(table, start, stop) for table, start, stop, owner in ranges if owner == node]
        # A large table may still land whole on one node; it then is laid out and looked up as a whole one.
        whole += [part for part in cut if part[2] - part[1] == rows[part[0]]]
        cut = [part for part in cut if part[2] - part[1] != rows[part[0]]]
        offset = 0
        for table, start, stop in sorted(whole) + sorted(cut):
            pieces.append(Piece(table, start, stop, node, offset))
            offset += stop - start
    return tuple(pieces)
