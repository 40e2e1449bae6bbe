"""The split of all tables' rows over the embedding nodes.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ...config.tables import EmbeddedColumn, TableSettings, columns_of
from ...errors import ClusterError, JobFileError
from .ranges import Range, check_enough_rows, find_split_fault
from .split_by_rows import split_by_rows

ROWS_LIMIT = 2**31
"""Rows of one bank of a node are numbered by int32 on the wire."""
BANKS_LIMIT = 1024
"""A request has a count of rows for each bank."""


@dataclass(frozen=True)
class Bank:
    """The settings shared by tables whose rows are stored together.

    `growing` is the name of a growing table, which has a bank of its own in messages; "" for hashed tables.
    `summed` says that nodes sum all bags of that table. `mixed` says that of each table of the bank nodes sum
    the bags of some columns, and send the rows of others (`TableSettings.is_mixed`).
    """

    dim: int
    optimizer: str
    lr: float
    storage: str
    growing: str = ""
    summed: bool = False
    mixed: bool = False
    weight_decay: float = 0.0
    memory_bytes: int | None = None
    folder: str = ""

    @property
    def combination(self) -> Bank:
        """Return the settings alone, without what else tells banks apart."""
        return replace(self, growing="", summed=False, mixed=False)


def bank_of(table: TableSettings) -> Bank:
    """Return the bank that holds a table's rows."""
    bank = Bank(
        table.dim,
        table.optimizer,
        table.lr,
        table.storage,
        mixed=table.is_mixed,
        weight_decay=table.weight_decay,
        memory_bytes=table.memory_bytes,
        folder=table.folder,
    )
    if table.growth is None:
        return bank
    return replace(bank, growing=table.name, summed=table.summed_columns == len(table.columns) > 0)


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of `table`, from `offset` on in a node's bank."""

    table: int
    start: int
    stop: int
    node: int
    offset: int
    bank: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class TablePlan:
    """A split of all tables that covers every row once.

    The coordinator makes the plan and sends it to all nodes.

    Attributes:
        tables: all tables.
        banks: one for each combination of dim, optimizer, learning rate, weight decay, storage and place of
            the rows, in the order of the tables, and another one for its mixed tables; then one for each
            growing table, those of a combination side by side, the summed ones behind, the mixed ones last.
            Every node has all banks; some may be without rows.
        nodes: number of embedding nodes.
        pieces: pieces sorted by node, bank and offset. A bank has its whole tables first, in the order of
            tables, then pieces of split tables, at most one of each table.
    """

    tables: tuple[TableSettings, ...]
    banks: tuple[Bank, ...]
    nodes: int
    pieces: tuple[Piece, ...]

    @cached_property
    def bank_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the banks that a node stores together, so that a batch is one search.

        They are the banks of growing tables of equal settings, which are not mixed; every other bank is
        alone.
        """

        def settings(number: int) -> tuple[bool, Bank, int]:
            bank = self.banks[number]
            return bank.growing != "", bank.combination, number if bank.mixed else -1

        return tuple(tuple(group) for _, group in itertools.groupby(range(len(self.banks)), settings))

    @classmethod
    def make(cls, tables: Sequence[TableSettings], nodes: int) -> TablePlan:
        """Return the split of `split_by_rows`, which depends only on the tables.

        Raises:
            JobFileError: see `of_ranges`.
        """
        return cls.of_ranges(tables, nodes, split_by_rows(tables, nodes))

    @classmethod
    def of_ranges(cls, tables: Sequence[TableSettings], nodes: int, ranges: Sequence[Range]) -> TablePlan:
        """Return the plan of a given split; the order of `ranges` does not matter.

        Raises:
            JobFileError: fewer rows than nodes, more rows for a bank than an int32 can number, or too many
                banks.
            ValueError: a row is on no node or on two, or a node has two ranges of a table.
        """
        check_enough_rows(tables, nodes)
        if fault := find_split_fault(tables, nodes, ranges):
            raise ValueError(fault)
        bank_of_table = [bank_of(table) for table in tables]
        banks = _in_order(dict.fromkeys(bank_of_table))
        if len(banks) > BANKS_LIMIT:
            raise JobFileError(
                f"the tables have {len(banks):,} combinations of dim, optimizer, learning rate, weight "
                f"decay, storage, memory and folder, above the limit of {BANKS_LIMIT:,}",
                where="tables",
                remedy="give more tables the same settings",
            )
        numbers = {bank: number for number, bank in enumerate(banks)}
        pieces = _lay_out(tables, [numbers[bank] for bank in bank_of_table], ranges)
        fullest = max(piece.offset + len(piece) for piece in pieces)
        if fullest >= ROWS_LIMIT:
            raise JobFileError(
                f"one bank of a node would get {fullest:,} rows, but can hold {ROWS_LIMIT - 1:,}",
                where="embedding.nodes",
                remedy=f"set embedding.nodes above {nodes}, or lower model.table_rows",
            )
        return cls(tuple(tables), banks, nodes, pieces)

    @classmethod
    def from_body(cls, tables: Sequence[TableSettings], nodes: int, body: Any) -> TablePlan:
        """Return the plan from a message's body, which `to_body` of another node made.

        `tables` and `nodes` are those of this node's job. Raises ClusterError, which names the difference,
        if the plan does not fit them.
        """
        try:
            ranges = [Range(*map(int, values)) for values in body["ranges"]]
            stated_nodes, digest = int(body["nodes"]), str(body["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise _unusable(f"it cannot be read ({type(error).__name__}: {error})") from error
        if stated_nodes != nodes:
            raise _unusable(f"it is for {stated_nodes} embedding nodes, but the job has {nodes}")
        if fault := find_split_fault(tables, nodes, ranges):
            raise _unusable(fault)
        plan = cls.of_ranges(tables, nodes, ranges)
        if plan.digest != digest:
            raise _unusable(f"its digest is {digest[:12]}, but this node computes {plan.digest[:12]}")
        return plan

    def to_body(self) -> dict[str, Any]:
        """Return a message's body: nodes, ranges ([table, start, stop, node] each), digest."""
        ranges = [[piece.table, piece.start, piece.stop, piece.node] for piece in self.pieces]
        return {"nodes": self.nodes, "ranges": ranges, "digest": self.digest}

    def difference(self, node: int, held: Iterable[Sequence[int]]) -> str:
        """Describe the first table whose rows on `node` differ from the plan.

        Returns "" if none differs.

        Args:
            node: the node.
            held: table, start, stop of each piece that the node holds.
        """
        theirs = {int(table): (int(start), int(stop)) for table, start, stop in held}
        mine = {piece.table: (piece.start, piece.stop) for piece in self.pieces_of(node)}
        for table in sorted(theirs.keys() | mine.keys()):
            if theirs.get(table) != mine.get(table):
                name = self.tables[table].name if table < len(self.tables) else f"number {table}"
                return (
                    f"it has {_describe_rows(theirs.get(table))} of table {name}, but the plan gives it "
                    f"{_describe_rows(mine.get(table))}"
                )
        return ""

    @cached_property
    def columns(self) -> tuple[EmbeddedColumn, ...]:
        """Return the columns whose ids have rows of the tables, in the order of the model's embeddings."""
        return columns_of(self.tables)

    def bag_pieces(self, node: int) -> tuple[int, ...]:
        """Return for each bank how many bags of an example the node sums: one a piece and column."""
        counts = [0] * len(self.banks)
        for piece in self.pieces_of(node):
            counts[piece.bank] += self.tables[piece.table].summed_columns
        return tuple(counts)

    @cached_property
    def _by_node(self) -> tuple[tuple[Piece, ...], ...]:
        return tuple(tuple(p for p in self.pieces if p.node == node) for node in range(self.nodes))

    def pieces_of(self, node: int) -> tuple[Piece, ...]:
        """Return the pieces that `node` holds, by bank and offset."""
        return self._by_node[node]

    def rows_of(self, node: int) -> int:
        """Return how many rows `node` holds, in all its banks."""
        return sum(len(piece) for piece in self._by_node[node])

    def bank_rows(self, node: int, bank: int) -> int:
        """Return how many rows a bank of `node` has."""
        return sum(len(piece) for piece in self._by_node[node] if piece.bank == bank)

    def is_whole(self, piece: Piece) -> bool:
        return len(piece) == self.tables[piece.table].rows

    @cached_property
    def digest(self) -> str:
        """Return the hex SHA-256 of the plan, which all nodes must have."""
        pieces = [[p.table, p.start, p.stop, p.node, p.bank, p.offset] for p in self.pieces]
        text = json.dumps([[asdict(t) for t in self.tables], self.nodes, pieces], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def placement_digest(self) -> str:
        """Return the hex SHA-256 of each node's rows, by tables' names.

        If two plans have the same placement digest, a node of one can continue from what the same node of the
        other saved.
        """
        pieces = [[self.tables[p.table].name, p.start, p.stop, p.node] for p in self.pieces]
        return hashlib.sha256(json.dumps(sorted(pieces), separators=(",", ":")).encode()).hexdigest()


def _in_order(banks: Iterable[Bank]) -> tuple[Bank, ...]:
    """Return banks of growing tables behind the others, and by their settings.

    Of those with equal settings the summed ones come behind, and the mixed ones last.
    """
    combinations = list(dict.fromkeys(bank.combination for bank in banks))

    def place(bank: Bank) -> tuple[bool, int, bool, bool]:
        return bank.growing != "", combinations.index(bank.combination), bank.mixed, bank.summed

    return tuple(sorted(banks, key=place))


def _lay_out(tables: Sequence[TableSettings], banks: list[int], ranges: Sequence[Range]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    # A range may be a whole table; it then comes before the pieces of split tables.
    order = [(r.node, banks[r.table], r.stop - r.start != tables[r.table].rows, r) for r in ranges]
    place, offset = (-1, -1), 0
    for node, bank, _, (table, start, stop, _) in sorted(order):
        if place != (node, bank):
            place, offset = (node, bank), 0
        pieces.append(Piece(table, start, stop, node, offset, bank))
        offset += stop - start
    return tuple(pieces)


def _describe_rows(rows: tuple[int, int] | None) -> str:
    return "no rows" if rows is None else f"rows {rows[0]:,} to {rows[1] - 1:,}"


def _unusable(what: str) -> ClusterError:
    return ClusterError(
        f"the coordinator's plan of the tables cannot be used: {what}",
        remedy="use one version of shadowsync on all nodes",
    )
