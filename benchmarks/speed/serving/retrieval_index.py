"""Indexes of item vectors, against exact search: CPU to build, CPU of a query, recall, bytes.

    python benchmarks/speed/serving/retrieval_index.py --out benchmarks/speed/results/retrieval_index.json

Vectors have 64 floats and the length 1. `clusters`: 1,000 groups of items that are alike. `towers`: what two
layers with ReLU make of random inputs, without groups. Queries are near an item, but near no other one on
purpose. Each figure is CPU seconds of one thread, so that what else the machine does matters little.
`usearch` is measured if it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from shadowsync.pipeline.report.run_folders.write import describe_hardware, versions
from shadowsync.pipeline.retrieval.index import VectorIndex
from shadowsync.pipeline.retrieval.top_k import ExactSearch
from shadowsync.pipeline.types import Float32Array

DIM = 64
QUERIES = 300
KINDS = ("clusters", "towers")
Search = Callable[[Float32Array, int], Any]


def vectors_of(kind: str, count: int, rng: np.random.Generator) -> tuple[Float32Array, Float32Array]:
    """Return the vectors of items, and of queries."""
    if kind == "clusters":
        centers = _long(rng.normal(size=(1000, DIM)))
        points = centers[rng.integers(0, 1000, count)] + rng.normal(0, 0.9 / DIM**0.5, (count, DIM))
    else:
        first, second = rng.normal(size=(32, 128)), rng.normal(size=(128, DIM))
        points = np.maximum(rng.normal(size=(count, 32)) @ first, 0) @ second
    items = _long(points)
    near = items[rng.integers(0, count, QUERIES)]
    return items, _long(near + rng.normal(0, 0.5 / DIM**0.5, near.shape))


def _long(vectors: Any) -> Float32Array:
    scaled: Float32Array = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def indexes(
    items: Float32Array, exact: ExactSearch, queries: Float32Array, most_in_graphs: int
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each index."""
    count = len(items)
    seconds, index = timed(lambda: VectorIndex.build(items))
    tuning, _ = timed(lambda: index.tune(exact, queries[: QUERIES // 2], "queries"))
    with tempfile.TemporaryDirectory() as folder:
        index.write(Path(folder) / "index")
        size = os.path.getsize(Path(folder) / "index")
    lists = f"{index._index.nprobe} of {index._index.nlist} lists"
    yield figures(f"faiss lists, {lists}", index.search, seconds, size, exact, queries) | {
        "tuning_seconds": round(tuning, 2)
    }
    if count > most_in_graphs:
        return
    graph = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 128
    seconds, _ = timed(lambda: graph.add(items))
    graph.hnsw.efSearch = 256
    size = len(faiss.serialize_index(graph))
    yield figures(
        "faiss graph, 32 links", lambda q, k: graph.search(q, k)[::-1], seconds, size, exact, queries
    )
    if find_spec("usearch") is not None:
        from usearch.index import Index

        for dtype in ("f32", "f16"):
            other = Index(ndim=DIM, metric="ip", dtype=dtype, connectivity=32, expansion_add=128)
            seconds, _ = timed(lambda: other.add(np.arange(count), items, threads=1))  # noqa: B023
            other.expansion_search = 256
            search = lambda q, k: (np.atleast_2d(other.search(q, k, threads=1).keys).astype(np.int64),)  # noqa: B023, E731
            yield figures(
                f"usearch graph, 32 links, {dtype}", search, seconds, other.serialized_length, exact, queries
            )


def figures(
    name: str, search: Search, build: float, size: int, exact: ExactSearch, queries: Float32Array
) -> dict[str, Any]:
    """Return the figures of an index; its queries come one by one."""
    row: dict[str, Any] = {"index": name, "build_seconds": round(build, 2), "megabytes": round(size / 1e6, 1)}
    held_out = queries[QUERIES // 2 :]
    for k in (10, 100):
        least = exact.search(held_out, k)[1][:, -1:]
        seconds, parts = timed(lambda: [search(query[None], k)[0] for query in held_out])  # noqa: B023
        row[f"recall_at_{k}"] = round(
            float((exact.of_items(held_out, np.concatenate(parts)) >= least).mean()), 4
        )
        row[f"microseconds_at_{k}"] = round(1e6 * seconds / len(held_out))
    return row


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of some work, and its result."""
    since = time.process_time()
    result = work()
    return time.process_time() - since, result


def main() -> None:
    """Measure each index on each kind of vectors, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--most-in-graphs", type=int, default=100_000, help="Graphs take minutes beyond.")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    found: dict[str, Any] = {
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "figures": {},
    }
    for count in given.items:
        for kind in given.kinds:
            items, queries = vectors_of(kind, count, np.random.default_rng(1))
            exact = ExactSearch(items)
            own = figures("exact", exact.search, 0.0, items.nbytes, exact, queries)
            rows = found["figures"].setdefault(f"{count} {kind}", [own])
            print(count, kind, own, flush=True)
            for row in indexes(items, exact, queries, given.most_in_graphs):
                rows.append(row)
                print(count, kind, row, flush=True)
                given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
