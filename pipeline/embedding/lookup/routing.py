"""The trainer's side: a batch's rows into a request for each node, the answers into a model's embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...types import Int32Array
from ..placement.plan import TablePlan
from .lookup import NO_BAG_LENGTHS, Bags, LookupPlan
from .router import NodeTables
from .vectors import Floats
from .vectors_part import Vectors

NO_ROWS: Int32Array = np.zeros(0, np.int32)


class ShardRouter:
    """Splits the rows of batches over nodes, by one plan.

    It keeps nothing of a batch, so any number of them may be under way, and any thread may call it.

    Args:
        plan: the split.
        distinct: whether each distinct row of a batch is asked for once, and its gradients summed here. That
            spares bytes and the nodes' work, for some work here; nothing else changes, not a bit where
            vectors and gradients travel as float32. Other codecs round the sum instead of its parts. Bags
            are as they are.
    """

    def __init__(self, plan: TablePlan, *, distinct: bool = False) -> None:
        self.plan = plan
        tables = enumerate(plan.tables)
        self._bagged = tuple(number for number, table in tables if table.pooling)
        single = tuple(number for number in range(len(plan.tables)) if number not in self._bagged)
        self._single = single
        self._row_limits = np.array([plan.tables[number].rows for number in single], np.uint32)
        self._nodes = [NodeTables(plan, node, single, distinct=distinct) for node in range(plan.nodes)]

    def requests(
        self, rows: Int32Array, bag_rows: Int32Array = NO_ROWS, bag_lengths: Int32Array = NO_BAG_LENGTHS
    ) -> list[LookupPlan]:
        """One request for each node, in the order of nodes.

        Args:
            rows: int32 [T1, B], C-contiguous: for each table with one row an example, that row.
            bag_rows: int32 [N]: the bags of the first table with bags, example by example, then those of the
                next.
            bag_lengths: int32 [M, B]: how many rows each of these bags has; [0, 0] where no table has bags.

        Raises:
            ValueError: another shape or type, or a row that its table does not have.
        """
        tables = len(self._single)
        if rows.ndim != 2 or len(rows) != tables or rows.dtype != np.int32 or not rows.flags.c_contiguous:
            raise ValueError(
                f"rows must be C-contiguous int32 [{tables}, B], not {rows.dtype} {list(rows.shape)}"
            )
        # Taken as unsigned, a negative number is too large.
        if rows.size and (over := rows.view(np.uint32).max(axis=1) >= self._row_limits).any():
            self._refuse_rows(self._single[int(np.flatnonzero(over)[0])])
        batch = rows.shape[1] if tables else bag_lengths.shape[-1]
        bags = self._bags(bag_rows, bag_lengths, batch)
        return [node.request(rows, batch, bags) for node in self._nodes]

    def _bags(self, bag_rows: Int32Array, lengths: Int32Array, batch: int) -> dict[int, Bags]:
        """By table: its bags."""
        if not self._bagged and not bag_rows.size and not lengths.size:
            return {}
        shape = (len(self._bagged), batch)
        if lengths.dtype != np.int32 or lengths.shape != shape or (lengths.size and lengths.min() < 0):
            raise ValueError(f"bag_lengths must be int32 {list(shape)}, none below 0")
        if bag_rows.dtype != np.int32 or bag_rows.shape != (int(lengths.sum(dtype=np.int64)),):
            raise ValueError(
                f"bag_rows must be int32 [{lengths.sum(dtype=np.int64)}], the sum of bag_lengths"
            )
        bags: dict[int, Bags] = {}
        at = 0
        for table, own in zip(self._bagged, lengths, strict=True):
            part = bag_rows[at : at + int(own.sum(dtype=np.int64))]
            if part.size and part.view(np.uint32).max() >= self.plan.tables[table].rows:
                self._refuse_rows(table)
            bags[table] = Bags(part, own, self.plan.tables[table].pooling)
            at += len(part)
        return bags

    def _refuse_rows(self, table: int) -> None:
        raise ValueError(f"a row of table {table} is not one of its {self.plan.tables[table].rows}")

    def assemble(
        self,
        requests: Sequence[LookupPlan],
        answers: Sequence[Floats],
        device: torch.device | None = None,
    ) -> Vectors:
        """The embeddings of a batch from the nodes' answers.

        Args:
            requests: what `requests` returned for the batch.
            answers: for each of them its `floats`, float32: an array, a tensor, or the buffer of a received
                frame. The result keeps and uses this memory: it must not change until the backward pass is
                over. A tensor may already be on the device.
            device: where the embeddings are to be; the CPU without it. What is elsewhere is copied there, in
                the order of the device's current stream; only from pinned memory that is not waited for.

        Raises:
            ValueError: not one answer a node, or one of another size or type.
        """
        if len(requests) != self.plan.nodes or len(answers) != self.plan.nodes:
            raise ValueError(
                f"{len(answers)} answers to {len(requests)} requests, for {self.plan.nodes} nodes"
            )
        return Vectors(requests, answers, len(self.plan.tables), device or torch.device("cpu"))
