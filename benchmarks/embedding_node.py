"""The speed of an embedding node.

It is measured over the wire against in process, and with many rows against few.

    python benchmarks/embedding_node.py costs     [--batch 2048]       a lookup and a push, CPU microseconds
    python benchmarks/embedding_node.py loopback  [--rounds 10]        goal: at least 0.5 of in process
    python benchmarks/embedding_node.py rows      [--rows 100000000]   goal: at most 1.5 times 1,000,000 rows

All take `--storage`, `--optimizer`, `--threads` and `--out FILE.json`. 26 tables of 16 floats with as many
rows each. Of the ids of a batch `--tail` are even over all rows of their table, the rest log-uniform over
`--head` rows of it, which are the same ones in every batch, and as frequent however many rows there are. No
batch comes twice, so what is in the caches is what a stream of such batches leaves there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np
import psutil
import torch
import zmq
from shadowsync.benchmarks.pairs import Figures, alternate, ratio, save, show_ratio, table
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.runtime.process import tune_malloc
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import BatchId, Float32Array, Int32Array
from shadowsync.pipeline.wire.messages import Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.sockets import Connection, Listener

TABLES, DIM = 26, 16
AHEAD = 3
"""Batches under way at once, as many as a trainer with a worker or two has."""


class Ids:
    """Batches of row numbers as they are sent to a node.

    Each is int32 [26 * batch], and never the same again.
    """

    def __init__(self, options: argparse.Namespace, rows: int, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._batch, self._rows, self._tail = options.batch, rows // TABLES, options.tail
        self._head = min(options.head, self._rows)
        self._offsets = np.arange(TABLES, dtype=np.int64)[:, None] * self._rows

    def __iter__(self) -> Iterator[Int32Array]:
        shape = (TABLES, self._batch)
        while True:
            head = np.minimum(self._head ** self._draw.random(shape), self._head - 1).astype(np.int64)
            # Spread over the table, as a hash does it, and the same places in every batch.
            head = head * (self._rows // self._head)
            tail = self._draw.integers(0, self._rows, shape)
            ids = np.where(self._draw.random(shape) < self._tail, tail, head) + self._offsets
            yield ids.reshape(-1).astype(np.int32)


def make_store(options: argparse.Namespace, rows: int) -> ShardStore:
    """A node that has all tables, its memory touched."""
    tables = [
        TableSettings(f"C{n}", rows // TABLES, DIM, "", options.optimizer, 0.02, 0.05, options.storage)
        for n in range(TABLES)
    ]
    store = ShardStore(TablePlan.make(tables, 1), 0, seed=1, memory_fraction=0.95)
    for _, arrays in store.pieces():
        for name, values in arrays.items():
            if name != "weights":
                values[0 : len(values)] = np.zeros((), np.float32)
    return store


def in_process(options: argparse.Namespace, store: ShardStore, ids: Ids, batches: int) -> Figures:
    """Look up and update on this thread."""
    out = np.empty(TABLES * options.batch * DIM, np.float32)
    gradients = make_gradients(options)
    drawn = [rows for rows, _ in zip(ids, range(batches), strict=False)]
    wall, cpu = time.perf_counter(), time.thread_time()
    for rows in drawn:
        store.lookup(rows, out)
        store.apply(rows, gradients)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    examples = batches * options.batch
    return {"examples/s": examples / wall, "CPU us/batch": cpu / batches * 1e6}


def make_gradients(options: argparse.Namespace) -> Float32Array:
    """Make gradients, float32 [26 * batch * 16].

    They are as of a model that has learned for a while.
    """
    draw = np.random.default_rng(2)
    values: Float32Array = draw.standard_normal(TABLES * options.batch * DIM, dtype=np.float32)
    values *= np.float32(1e-3)
    return values


def serve(options: argparse.Namespace, rows: int, pipe: Pipe) -> None:
    """Serve as a node, in the other process, until the pipe ends."""
    failures: list[BaseException] = []
    listener = Listener(zmq.Context(), "tcp://127.0.0.1:0")
    service = ShardService(listener, make_store(options, rows), failures.append, threads=options.threads)
    service.start()
    pipe.send(listener.endpoint)
    while pipe.recv():
        pipe.send(psutil.Process().cpu_times()[:2])
    service.stop()
    service.join(5.0)
    if failures:
        raise failures[0]


class Loopback:
    """A service in its own process and a worker's connection to it."""

    def __init__(self, options: argparse.Namespace, rows: int) -> None:
        self._options, self._gradients = options, make_gradients(options)
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(options, rows, theirs), daemon=True)
        self._process.start()
        endpoint = self._pipe.recv()
        self._connection = Connection(zmq.Context(), endpoint, "benchmark/0")
        self._number = 0

    def run(self, ids: Ids, batches: int) -> Figures:
        """Look up and update with AHEAD batches under way.

        All answers are waited for.
        """
        drawn = [rows for rows, _ in zip(ids, range(batches), strict=False)]
        server, own, wall = self._server_cpu(), time.process_time(), time.perf_counter()
        asked, pushed = 0, 0
        while pushed < batches:
            while asked < batches and asked - pushed < AHEAD:
                self._connection.send(Lookup(asked, drawn[asked]))
                asked += 1
            self._connection.socket.poll()
            answer = self._connection.receive()
            if isinstance(answer, Vectors):
                self._push(answer, drawn[answer.request])
            elif isinstance(answer, Pushed):
                pushed += 1
        wall, own = time.perf_counter() - wall, time.process_time() - own
        server = self._server_cpu() - server
        return {
            "examples/s": batches * self._options.batch / wall,
            "CPU us/batch": server / batches * 1e6,
            "client CPU us/batch": own / batches * 1e6,
        }

    def _push(self, answer: Vectors, rows: Int32Array) -> None:
        self._number += 1
        batch = BatchId(0, 0, self._number, 1)
        self._connection.send(Push(answer.request, batch, answer.version, rows, self._gradients))

    def _server_cpu(self) -> float:
        self._pipe.send(True)
        return float(sum(self._pipe.recv()))

    def close(self) -> None:
        """End the other process."""
        self._connection.close()
        self._pipe.send(False)
        self._process.join()


def loopback(options: argparse.Namespace) -> object:
    """Alternate in process, on one thread, and over the wire."""
    store, ids = make_store(options, options.rows), Ids(options, options.rows, 1)
    wire = Loopback(options, options.rows)
    runs: dict[str, Callable[[], Figures]] = {
        "in process": partial(in_process, options, store, ids, options.batches),
        "loopback": partial(wire.run, ids, options.batches),
    }
    for run in runs.values():
        run()
    results = alternate(runs, options.rounds)
    wire.close()
    return compared(results, ("loopback", "in process"), "examples/s")


def rows(options: argparse.Namespace) -> object:
    """Alternate 1,000,000 rows and `--rows` of them, in process."""
    runs: dict[str, Callable[[], Figures]] = {}
    for n in (1_000_000, options.rows):
        store, ids = make_store(options, n), Ids(options, n, 1)
        runs[f"{n:,} rows"] = partial(in_process, options, store, ids, options.batches)
    for warm in runs.values():
        warm()
    results = alternate(runs, options.rounds)
    few, many = runs
    return compared(results, (many, few), "CPU us/batch")


def compared(results: dict[str, list[Figures]], names: tuple[str, str], key: str) -> object:
    """Print all figures and one ratio.

    The ratio is that of one figure of the first to that of the second.
    """
    over, under = ([figures[key] for figures in results[name]] for name in names)
    value = ratio(over, under)
    print("\n" + table(results) + "\n" + show_ratio(f"{names[0]} / {names[1]}, {key}", value))
    return {"runs": results, "ratio": value}


def costs(options: argparse.Namespace) -> object:
    """CPU microseconds of a lookup and a push.

    Also those of nothing but reading and writing as many rows.
    """
    began = time.perf_counter()
    store, ids = make_store(options, options.rows), iter(Ids(options, options.rows, 1))
    filled = options.rows / (time.perf_counter() - began)
    out, gradients = np.empty(TABLES * options.batch * DIM, np.float32), make_gradients(options)
    bare = np.zeros((options.rows, DIM), np.float32)
    spent: dict[str, list[float]] = {"lookup": [], "push": [], "read and write": []}

    def timed(name: str, call: Callable[[], object]) -> None:
        began = time.thread_time()
        call()
        spent[name].append((time.thread_time() - began) * 1e6)

    def read_and_write(numbers: Int32Array) -> None:
        bare[numbers] = np.take(bare, numbers, axis=0, mode="clip")

    for _ in range(options.batches * options.rounds):
        asked = next(ids)
        distinct = np.unique(asked)
        timed("lookup", lambda: store.lookup(asked, out))  # noqa: B023 - called at once
        timed("push", lambda: store.apply(asked, gradients))  # noqa: B023
        timed("read and write", lambda: read_and_write(distinct))  # noqa: B023
    medians = {name: statistics.median(values) for name, values in spent.items()}
    for name, value in medians.items():
        print(f"{name:16}{value:10,.0f} us")
    print(f"a new store: {filled / 1e6:.1f} million rows/s")
    return {"rows of a batch": TABLES * options.batch, "CPU us": medians, "new rows/s": filled}


def main() -> None:
    """Measure one thing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("costs", "loopback", "rows"))
    parser.add_argument("--rows", type=int, default=0, help="in all tables; 2,600,000, for rows 100,000,000")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=20, help="in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--storage", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--optimizer", default="rowwise_adagrad")
    parser.add_argument("--threads", type=int, default=1, help="of the service")
    parser.add_argument("--tail", type=float, default=0.2)
    parser.add_argument("--head", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.rows = options.rows or (100_000_000 if options.what == "rows" else 2_600_000)
    torch.set_num_threads(1)
    tune_malloc()
    results = {"costs": costs, "loopback": loopback, "rows": rows}[options.what](options)
    if options.out:
        settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
        save(options.out, f"embedding node, {options.what}", {"settings": settings, "results": results})


if __name__ == "__main__":
    main()
