"""The upper bound of one machine, with plain Hogwild.

The same model trains in one process, with no reader, no network and no synchronization. Threads share the
dense parameters and one fused table, and take preloaded batches. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time

import numpy as np
import torch
from shadowsync.pipeline.models.built_in.dlrm import DLRM
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

TABLES, ROWS, DENSE, DIM = 26, 100_000, 13, 16


class Whole(nn.Module):
    """DLRM with its tables in one sparse `nn.Embedding`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = DLRM(DENSE, [DIM] * TABLES, bottom=[512, 256, 64], top=[512, 256])
        self.table = nn.Embedding(TABLES * ROWS, DIM, sparse=True)
        self.register_buffer("offsets", torch.arange(TABLES).unsqueeze(1) * ROWS)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits [B] from dense [B, D] and rows [T, B]."""
        vectors = self.table(rows + self.get_buffer("offsets"))
        logits: torch.Tensor = self.dense(dense, list(vectors.unbind(0)))
        return logits


def batches(count: int, size: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Preloaded batches: dense normal, ids log-uniform, labels random."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        rows = (ROWS ** random.random((TABLES, size)) - 1).astype(np.int64).clip(0, ROWS - 1)
        dense = random.standard_normal((size, DENSE)).astype(np.float32)
        labels = (random.random(size) < 0.25).astype(np.float32)
        made.append((torch.from_numpy(dense), torch.from_numpy(rows), torch.from_numpy(labels)))
    return made


def measure(threads: int, size: int, warm_seconds: float, window_seconds: float) -> dict[str, float]:
    """Examples/s and CPU seconds per million of all threads, over the window."""
    torch.set_num_threads(1)
    model = Whole()
    counts = [0] * threads
    stop = threading.Event()

    def work(index: int) -> None:
        torch.set_num_threads(1)
        own = Whole()
        for mine, shared in zip(own.parameters(), model.parameters(), strict=True):
            mine.data = shared.data
        optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
        data = batches(200, size, index)
        while not stop.is_set():
            for dense, rows, labels in data:
                optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(own(dense, rows), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                counts[index] += size
                if stop.is_set():
                    return

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    while min(counts) == 0:
        time.sleep(0.05)
    time.sleep(warm_seconds)
    before, started, cpu = sum(counts), time.perf_counter(), time.process_time()
    time.sleep(window_seconds)
    done, seconds = sum(counts) - before, time.perf_counter() - started
    used = time.process_time() - cpu
    stop.set()
    for worker in workers:
        worker.join()
    return {"examples_per_second": done / seconds, "cpu_seconds_per_million": used / done * 1e6}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--window", type=float, default=6.0)
    given = parser.parse_args()
    print(json.dumps(measure(given.threads, given.batch, given.warm, given.window)))
