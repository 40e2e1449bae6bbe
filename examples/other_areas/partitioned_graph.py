"""A graph model over partitions, with old vectors of the boundary.

    torchrun --standalone --nproc-per-node 2 examples/other_areas/partitioned_graph.py

Each loop has a partition of the nodes, and is attached to the others for the weights. What a layer needs of
the others' nodes, they send: vectors of r epochs ago, for which nobody waits, of an r-th of the nodes in each
epoch. The setting is DistGNN's (Md et al., arXiv 2104.06700: cd-0, cd-r, and 0c without an exchange). Here
partitions are cut at edges, and gradients stay in their partition.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import shadowsync
import torch
import torch.distributed as dist
from torch import nn

CLASSES = 6
FEATURES = 16
WIDTH = 32
LAYERS = 3


@dataclass(frozen=True)
class Graph:
    """A stochastic block model.

    Features float32 [N, FEATURES], labels int64 [N], edges int64 [2, E], trained bool [N].
    """

    features: torch.Tensor
    labels: torch.Tensor
    edges: torch.Tensor
    trained: torch.Tensor


def block_model(nodes: int, seed: int, inside: float = 9.0, outside: float = 3.0) -> Graph:
    """Draw a graph with so many neighbours of a node's own and other classes.

    A tenth of the nodes is trained on.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (nodes,), generator=generator)
    same = labels[:, None] == labels[None, :]
    rate = torch.where(same, inside * CLASSES, outside * CLASSES / (CLASSES - 1)) / nodes
    upper = (torch.rand(nodes, nodes, generator=generator) < rate).triu(1)
    centers = torch.randn(CLASSES, FEATURES, generator=generator)
    features = 0.3 * centers[labels] + torch.randn(nodes, FEATURES, generator=generator)
    trained = torch.rand(nodes, generator=generator) < 0.1
    return Graph(features, labels, (upper | upper.T).nonzero().T, trained)


class Partition:
    """One partition: its nodes, then those of others with edges to them.

    Node n is in partition n % parts. With a delay below 0 nothing is exchanged.
    """

    def __init__(self, graph: Graph, part: int, parts: int, delay: int) -> None:
        self.part, self.parts, self.delay = part, parts, delay
        self.own = torch.arange(part, len(graph.labels), parts)
        near, far = graph.edges[:, graph.edges[0] % parts == part]
        others = [other for other in range(parts) if other != part and delay >= 0]
        self.needs = {other: far[far % parts == other].unique() for other in others}
        # An edge's other end needs it as well: edges go both ways.
        self.gives = {other: near[far % parts == other].unique() // parts for other in others}
        order = torch.cat([self.own, *self.needs.values()])
        places = torch.full((len(graph.labels),), -1)
        places[order] = torch.arange(len(order))
        known = places[far] >= 0
        index = torch.stack([near[known] // parts, places[far[known]]])
        degree = torch.bincount(index[0], minlength=len(self.own)).clamp(min=1)
        weights = 1.0 / degree[index[0]]
        # Features do not change: those of the boundary are there from the start.
        self.inputs = graph.features[order]
        self.labels, self.trained = graph.labels[self.own], graph.trained[self.own]
        shape = (len(self.own), len(order))
        self.mean = torch.sparse_coo_tensor(index, weights, shape, check_invariants=True).coalesce()
        self.seen: dict[tuple[int, int], torch.Tensor] = {}
        self.under_way: dict[tuple[int, int, int], tuple[Any, torch.Tensor, slice]] = {}
        self.sent_bytes = 0

    def with_boundary(self, layer: int, vectors: torch.Tensor, epoch: int) -> torch.Tensor:
        """Return the vectors with the boundary's of `delay` epochs ago behind them.

        Until the first have come, they are zeros.
        """
        for other, nodes in self.gives.items():
            chosen = slice(epoch % max(1, self.delay), None, max(1, self.delay))
            given, tag = vectors.detach()[nodes[chosen]].contiguous(), layer * 100_000 + epoch
            wanted = given.new_empty(len(self.needs[other][chosen]), vectors.shape[1])
            sending, receiving = dist.isend(given, other, tag=tag), dist.irecv(wanted, other, tag=tag)
            self.under_way[layer, other, epoch] = ((sending, given, receiving), wanted, chosen)
            self.sent_bytes += given.nbytes
            seen = self.seen.setdefault(
                (layer, other), given.new_zeros(len(self.needs[other]), vectors.shape[1])
            )
            if (layer, other, epoch - self.delay) in self.under_way:
                (sending, _, receiving), come, places = self.under_way.pop((layer, other, epoch - self.delay))
                sending.wait()
                receiving.wait()
                seen[places] = come
        return torch.cat([vectors, *(self.seen[layer, other].clone() for other in self.gives)])

    def finish(self) -> None:
        """Wait for what is still under way."""
        for (sending, _, receiving), _, _ in self.under_way.values():
            sending.wait()
            receiving.wait()


class GraphModel(nn.Module):
    """GraphSAGE with the mean of the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        widths = [FEATURES, *[WIDTH] * (LAYERS - 1), CLASSES]
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.near = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairwise(widths))

    def forward(self, partition: Partition, epoch: int) -> torch.Tensor:
        """Logits [nodes of the partition, CLASSES]."""
        vectors, known = partition.inputs[: len(partition.own)], partition.inputs
        for layer, (own, near) in enumerate(zip(self.own, self.near, strict=True)):
            if layer:
                known = partition.with_boundary(layer, vectors, epoch)
            vectors = own(vectors) + near(torch.sparse.mm(partition.mean, known))
            vectors = vectors.relu() if layer < LAYERS - 1 else vectors
        return vectors


def train(partition: Partition, seed: int, looks: list[int], **sync: Any) -> list[int]:
    """Train the partition's nodes; return its right answers on the others after these epochs."""
    torch.manual_seed(seed)
    model = GraphModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    labels, trained = partition.labels, partition.trained
    right = []
    with shadowsync.attach(model, optimizer, algorithm="ma", wait_for=dist.get_world_size(), **sync):
        # A loop that began before the others would count other rounds.
        dist.barrier()
        for epoch in range(looks[-1]):
            logits = model(partition, epoch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits[trained], labels[trained]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if epoch + 1 in looks:
                right.append(int((logits.argmax(dim=1) == labels)[~trained].sum()))
        partition.finish()
        dist.barrier()
    return right


def figures(nodes: int, looks: list[int], seeds: int) -> Iterator[tuple[str, list[list[float]], int]]:
    """Yield each row's name, its accuracies by seed and epoch, and the bytes."""
    rank, parts = dist.get_rank(), dist.get_world_size()
    fixed: dict[str, Any] = {"mode": "fixed", "every": 1, "options": {"elastic_rate": 1.0}}
    shadow: dict[str, Any] = {"mode": "shadow", "gap": 1, "duty": 1.0}
    rows: tuple[tuple[str, int, int, int, dict[str, Any]], ...] = (
        ("whole graph in each process", 0, 1, 0, fixed),
        ("r = 0", rank, parts, 0, fixed),
        ("r = 1", rank, parts, 1, fixed),
        ("r = 5", rank, parts, 5, fixed),
        ("r = 5, weights in the background", rank, parts, 5, shadow),
        ("no exchange", rank, parts, -1, fixed),
    )
    for name, part, count, delay, sync in rows:
        found = []
        for seed in range(seeds):
            partition = Partition(block_model(nodes, seed), part, count, delay)
            right = train(partition, seed, looks, **sync)
            sums = torch.tensor([*right, int((~partition.trained).sum()), partition.sent_bytes])
            dist.all_reduce(sums)
            found.append((sums[:-2] / sums[-2]).tolist())
        yield name, found, int(sums[-1])


def main() -> None:
    """Print the table; rank 0 does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2400)
    parser.add_argument(
        "--epochs", type=int, nargs="+", default=[10, 20, 100], help="when to look; the last ends it"
    )
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, found, sent in figures(given.nodes, given.epochs, given.seeds):
        if dist.get_rank() == 0:
            shares = "   ".join(" ".join(f"{share:.4f}" for share in one) for one in found)
            print(f"{name:<32}  {shares}   {sent:,} bytes", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
