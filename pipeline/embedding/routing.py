"""The trainer's side: a batch's rows into a request for each node, the answers into a model's embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..data.batch import Int32Array
from .floats import Floats
from .lookup import LookupPlan
from .plan import Piece, TablePlan
from .vectors import Vectors


class ShardRouter:
    """Splits the rows of batches over nodes, by one plan.

    It keeps nothing of a batch, so any number of them may be under way, and any thread may call it.
    """

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self._table_rows = np.array(plan.table_rows, np.uint32)
        self._nodes = [_NodeTables(plan, node) for node in range(plan.nodes)]

    def requests(self, rows: Int32Array) -> list[LookupPlan]:
        """One request for each node, in the order of nodes.

        Args:
            rows: int32 [T, B], C-contiguous: for each table the row of each example.

        Raises:
            ValueError: another shape or type, or a row that its table does not have.
        """
        tables = len(self._table_rows)
        if rows.ndim != 2 or len(rows) != tables or rows.dtype != np.int32 or not rows.flags.c_contiguous:
            raise ValueError(
                f"rows must be C-contiguous int32 [{tables}, B], not {rows.dtype} {list(rows.shape)}"
            )
        # Taken as unsigned, a negative number is too large.
        if rows.size and (over := rows.view(np.uint32).max(axis=1) >= self._table_rows).any():
            table = int(np.flatnonzero(over)[0])
            raise ValueError(f"a row of table {table} is not one of its {self.plan.table_rows[table]}")
        return [node.request(rows) for node in self._nodes]

    def assemble(self, requests: Sequence[LookupPlan], answers: Sequence[Floats]) -> Vectors:
        """The embeddings of a batch from the nodes' answers.

        Args:
            requests: what `requests` returned for the batch.
            answers: for each of them float32 [N, dim]: an array, a tensor, or the buffer of a received frame.
                The result keeps and uses this memory: it must not change until the backward pass is over.

        Raises:
            ValueError: not one answer a node, or one of another size or type.
        """
        if len(requests) != self.plan.nodes or len(answers) != self.plan.nodes:
            raise ValueError(
                f"{len(answers)} answers to {len(requests)} requests, for {self.plan.nodes} nodes"
            )
        return Vectors(requests, answers, self.plan.dim)


class _NodeTables:
    """What the plan says of one node, laid out for the making of requests."""

    def __init__(self, plan: TablePlan, node: int) -> None:
        whole = [piece for piece in plan.pieces_of(node) if plan.is_whole(piece)]
        self._node = node
        self._whole = tuple(piece.table for piece in whole)
        self._whole_index = np.array(self._whole, np.intp)
        self._offsets: Int32Array = np.array([piece.offset for piece in whole], np.int32)[:, None]
        self._pieces: list[Piece] = [piece for piece in plan.pieces_of(node) if not plan.is_whole(piece)]
        self._cut = tuple(piece.table for piece in self._pieces)

    def request(self, rows: Int32Array) -> LookupPlan:
        batch = rows.shape[1]
        positions: list[NDArray[np.int64]] = []
        for piece in self._pieces:
            row = rows[piece.table]
            positions.append(np.flatnonzero((row >= piece.start) & (row < piece.stop)))
        at = len(self._whole) * batch
        local = np.empty(at + sum(map(len, positions)), np.int32)
        if at:
            block = local[:at].reshape(-1, batch)
            np.take(rows, self._whole_index, axis=0, out=block, mode="clip")
            block += self._offsets
        for piece, examples in zip(self._pieces, positions, strict=True):
            part = local[at : at + len(examples)]
            np.add(rows[piece.table][examples], np.int32(piece.offset - piece.start), out=part)
            at += len(examples)
        return LookupPlan(self._node, local, batch, self._whole, self._cut, tuple(positions))
