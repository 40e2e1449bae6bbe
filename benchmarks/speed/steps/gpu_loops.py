"""Plain torch loops of our DLRM on one GPU: what its steps cost without shadowsync.

All hold the tables on the GPU and train by SGD, over one batch that is copied from pinned memory each step.
"eager" has a table each; "fused" has one table of all rows, so one lookup and one update; "captured" is
"fused" in a CUDA graph. Used by gpu.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.models.registry import build_model
from torch.nn.functional import binary_cross_entropy_with_logits

KINDS = ("eager", "fused", "captured")
LR = 0.01
WARM_STEPS = 10


class PlainLoop:
    """A model and its tables on a device, and a batch in pinned memory.

    Args:
        job: the job whose model and tables it has; one dimension for all tables.
        device: a GPU, or the CPU to try the script.
    """

    def __init__(self, job: Job, device: torch.device, batch: int) -> None:
        self._model = build_model(job).to(device)
        tables, dim = len(job.tables), job.tables[0].dim
        rows = [table.rows for table in job.tables]
        random = np.random.default_rng(0)
        self._rows = torch.randn(sum(rows), dim, device=device) * 0.01
        self._starts = torch.tensor([0, *np.cumsum(rows)[:-1]], device=device)[:, None]
        ids = np.stack([random.integers(0, count, batch) for count in rows])
        host = [
            torch.from_numpy((random.random(batch) < 0.25).astype(np.float32)),
            torch.from_numpy(random.standard_normal((batch, job.data.dense_width)).astype(np.float32)),
            torch.from_numpy(ids),
        ]
        pins = device.type == "cuda"
        self._host = [tensor.pin_memory() if pins else tensor for tensor in host]
        self._labels, self._dense, self._ids = (torch.empty_like(tensor, device=device) for tensor in host)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR, foreach=True)
        self._tables, self._shape = tables, (tables, batch, dim)

    def copy(self) -> None:
        """Copy the batch to the device."""
        for place, tensor in zip((self._labels, self._dense, self._ids), self._host, strict=True):
            place.copy_(tensor, non_blocking=True)

    def eager(self) -> None:
        """Train with a lookup and an update for each table."""
        places = self._ids + self._starts
        leaves = [self._rows[places[table]].requires_grad_() for table in range(self._tables)]
        self._backward(leaves)
        for table, leaf in enumerate(leaves):
            assert leaf.grad is not None
            self._rows.index_add_(0, places[table], leaf.grad, alpha=-LR)

    def fused(self) -> None:
        """Train with one lookup and one update."""
        places = (self._ids + self._starts).view(-1)
        leaf = self._rows.index_select(0, places).requires_grad_()
        self._backward(list(leaf.view(self._shape).unbind(0)))
        assert leaf.grad is not None
        self._rows.index_add_(0, places, leaf.grad, alpha=-LR)

    def _backward(self, embeddings: list[torch.Tensor]) -> None:
        self._optimizer.zero_grad(set_to_none=False)
        logits = self._model(self._dense, embeddings)
        binary_cross_entropy_with_logits(logits, self._labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def captured(self) -> Callable[[], None]:
        """Return a replay of `fused`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                self.copy()
                self.fused()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.fused()
        return graph.replay


def examples_per_second(job: Job, kind: str, device: str, batch: int, seconds: float) -> float:
    """Measure a loop, after its first steps."""
    where = torch.device(device)
    loop = PlainLoop(job, where, batch)
    step = loop.captured() if kind == "captured" else {"eager": loop.eager, "fused": loop.fused}[kind]

    def synchronize() -> None:
        if where.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM_STEPS):
        loop.copy()
        step()
    synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(WARM_STEPS):
            loop.copy()
            step()
        synchronize()
        steps += WARM_STEPS
    return steps * batch / (time.perf_counter() - began)
