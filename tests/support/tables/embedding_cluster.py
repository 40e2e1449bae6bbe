"""Embedding nodes without the wire between, and what plain torch embeddings make of the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from shadowsync.pipeline.config.tables import EmbeddedColumn, TableSettings, columns_of
from shadowsync.pipeline.data.batch import no_bag_keys, no_keys
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.lookup.vectors import BatchEmbeddings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import Float32Array, Int32Array, Uint64Array
from torch import nn

SEED = 5


@dataclass(frozen=True)
class DrawnRows:
    """The rows of one batch, as `ShardRouter.requests` takes them."""

    rows: Int32Array
    bag_rows: Int32Array
    bag_lengths: Int32Array
    item_weights: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    keys: Uint64Array = field(default_factory=no_keys)
    bag_keys: Uint64Array = field(default_factory=no_bag_keys)


def draw_rows(tables: Sequence[TableSettings], batch: int, seed: int, longest: int = 4) -> DrawnRows:
    """Rows with repeats, bags of 0 to `longest` of them; where any table has weights, a third of them 0."""
    draw = np.random.default_rng(seed)
    bagged = [column for column in columns_of(tables) if column.pooling]
    # Half of each table at most, so that rows repeat within a batch.
    single = [
        draw.integers(0, max(1, column.table.rows // 2), batch) * 2 % column.table.rows
        for column in columns_of(tables)
        if not column.pooling
    ]
    lengths = draw.integers(0, longest + 1, (len(bagged), batch))
    bags = [draw.integers(0, c.table.rows, n.sum()) for c, n in zip(bagged, lengths, strict=True)]
    bag_rows = np.concatenate([np.zeros(0), *bags]).astype(np.int32)
    weighted = any(column.of_table.weighted for column in bagged)
    weights = draw.uniform(0.1, 3.0, len(bag_rows)) * draw.integers(0, 3, len(bag_rows)).clip(max=1)
    return DrawnRows(
        np.array(single, np.int32).reshape(len(single), batch),
        bag_rows,
        lengths.astype(np.int32),
        (weights if weighted else np.zeros(0)).astype(np.float32),
    )


class EmbeddingCluster:
    """The stores of all nodes, and a router."""

    def __init__(
        self, tables: Sequence[TableSettings], nodes: int, *, distinct: bool = False, memory_bytes: int = 0
    ) -> None:
        self.plan = TablePlan.make(tables, nodes)
        self.router = ShardRouter(self.plan, distinct=distinct)
        self.stores = [
            ShardStore(self.plan, n, seed=SEED, memory_fraction=0.8, memory_bytes=memory_bytes)
            for n in range(nodes)
        ]

    def call(self, drawn: DrawnRows) -> tuple[list[LookupPlan], list[Float32Array]]:
        """The requests for a batch, and the nodes' answers."""
        requests = self.router.requests_of(drawn)
        replies = [np.empty(request.floats, np.float32) for request in requests]
        for request, reply in zip(requests, replies, strict=True):
            store = self.stores[request.node]
            store.lookup(request.rows, reply, request.counts, request.bag_lengths, request.keys)
        return requests, replies

    def forward(self, drawn: DrawnRows) -> tuple[list[LookupPlan], BatchEmbeddings]:
        """The requests for a batch, and its embeddings."""
        requests, replies = self.call(drawn)
        return requests, self.router.assemble(requests, replies)

    def push(self, requests: list[LookupPlan], gradients: Sequence[Float32Array]) -> None:
        """Applies the gradients at their nodes."""
        for request, gradient in zip(requests, gradients, strict=True):
            assert gradient.flags.c_contiguous
            self.stores[request.node].apply(
                request.rows,
                gradient,
                request.counts,
                bag_lengths=request.bag_lengths,
                keys=request.keys,
            )

    def train(self, drawn: DrawnRows) -> list[Float32Array]:
        """One step, whose loss is the sum of all e (e + 1); returns the embeddings."""
        requests, vectors = self.forward(drawn)
        loss = torch.stack([(e * (e + 1)).sum() for e in vectors.embeddings]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.push(requests, vectors.gradients())
        return [e.detach().numpy() for e in vectors.embeddings]

    def table(self, number: int) -> Float32Array:
        """All rows of a table, gathered from its pieces."""
        settings = self.plan.tables[number]
        result = np.full((settings.rows, settings.dim), np.nan, np.float32)
        for store in self.stores:
            for piece, arrays in store.pieces():
                if piece.table == number:
                    result[piece.start : piece.stop] = arrays["weights"]
        return result


class PlainTables:
    """The same tables as torch modules, float64, stepped by plain SGD."""

    def __init__(self, tables: Sequence[TableSettings]) -> None:
        self._tables = tables
        self.modules: list[nn.Embedding] = []
        for number, table in enumerate(tables):
            module = nn.Embedding(table.rows, table.dim).double()
            values = row_values(SEED, number, np.arange(table.rows), table.dim, table.init_scale)
            module.weight.data.copy_(torch.from_numpy(values))
            self.modules.append(module)

    def embeddings(self, drawn: DrawnRows) -> list[torch.Tensor]:
        """For each column float64 [B, dim]; [B, L, dim] for a sequence, with zeros behind it."""
        single, bags, at, results = iter(drawn.rows), iter(drawn.bag_lengths), 0, []
        for column in columns_of(self._tables):
            module = self.modules[column.number]
            if not column.pooling:
                results.append(module(torch.from_numpy(next(single)).long()))
                continue
            lengths = next(bags).astype(np.int64)
            own = torch.from_numpy(drawn.bag_rows[at : at + lengths.sum()]).long()
            weights = torch.from_numpy(drawn.item_weights[at : at + lengths.sum()]).double()
            at += int(lengths.sum())
            if column.pooling in ("sum", "mean"):
                starts = torch.from_numpy(np.cumsum(lengths) - lengths)
                bag = nn.functional.embedding_bag(own, module.weight, starts, mode=column.pooling)
                results.append(bag)
            else:
                lists = module(own).split(lengths.tolist())
                results.append(_listed(column, lists, weights))
        return results

    def step(self) -> None:
        """`w -= lr * g` for every row, each table at its rate; then the gradients are forgotten."""
        for table, module in zip(self._tables, self.modules, strict=True):
            if module.weight.grad is not None:
                module.weight.data -= table.lr * module.weight.grad
                module.weight.grad = None


def _listed(column: EmbeddedColumn, lists: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """A sequence side by side, or weighted sums, bag by bag."""
    if column.pooling == "none":
        longest = max([1, *map(len, lists)])
        padded = [nn.functional.pad(own, (0, 0, 0, longest - len(own))) for own in lists]
        return torch.stack(padded) if padded else torch.zeros(0, 1, column.dim, dtype=torch.float64)
    sums = []
    for own, given in zip(lists, torch.split(weights, [len(own) for own in lists]), strict=True):
        total = given.sum() if column.pooling == "weighted_mean" and given.sum() > 0 else torch.tensor(1.0)
        sums.append((own * given[:, None]).sum(0) / total)
    return torch.stack(sums) if sums else torch.zeros(0, column.dim, dtype=torch.float64)
