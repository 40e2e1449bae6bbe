"""What a batch leaves behind in reader, trainer and embedding node: nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from shadowsync.nodes.worker.batches import BatchAck
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.wire.buffers import BufferPool
from shadowsync.tests.support.jobs.in_one_process import Training, training_in_one_process

WARM_UP, BATCHES = 50, 150
JOB = {
    "data": {"format": "parquet", "path": ["x"], "dense_features": 3, "categorical_features": 4},
    "model": {"embedding_dim": 2, "table_rows": 11, "bottom": [6], "top": [5]},
    "trainer": {"batch": 8, "precision": "float32"},
}
OURS = ("shadowsync", __name__)
STANDARD = ("builtins", "collections", "functools", "queue", "_queue", "threading", "_thread", "itertools")
PLAIN = (int, float, complex, str, bytes, bool, type(None), ModuleType)


def module_of(kind: type) -> str:
    """Where a class was made; empty where it does not say, as one made by C code may not."""
    name = getattr(kind, "__module__", None)
    return name if type(name) is str else ""


def is_followed(found: object) -> bool:
    """Whether what an object refers to may be something that a batch has left: not within other libraries,
    and not in a pool, which keeps buffers up to its limit."""
    # Of the type, since `isinstance` asks objects for their class, and some warn when they are asked.
    kind = type(found)
    if issubclass(kind, (*PLAIN, BufferPool)):
        return False
    if issubclass(kind, type):
        return module_of(cast(type, found)).startswith(OURS)
    if issubclass(kind, FunctionType | MethodType | CellType):
        return True
    module = module_of(kind)
    return module.startswith(OURS) or module.split(".")[0] in STANDARD


def kept(training: Training) -> int:
    """How many references, and elements of arrays, there are in all that can be reached from the three nodes,
    and from the modules of the package."""
    ours = [vars(module) for name, module in list(sys.modules.items()) if name.startswith(OURS)]
    waiting: list[object] = [training, *ours]
    seen, count = {id(one) for one in waiting}, 0
    # What is a part of the walk itself is none of it.
    seen |= {id(waiting), id(seen), id(ours)}
    while waiting:
        for found in gc.get_referents(waiting.pop()):
            count += found.size if type(found) is np.ndarray else 1
            if id(found) not in seen and is_followed(found):
                seen.add(id(found))
                waiting.append(found)
    return count


class Leaks:
    """Where the control keeps something of each batch, once it is told to."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.array: NDArray[np.float64] = np.zeros(0)
        self.by_name: dict[str, dict[int, Any]] = {}

    def one_number(self, record: BatchAck) -> None:
        """The least there is."""
        self.numbers.append(record.finished_at)

    def a_longer_array(self, record: BatchAck) -> None:
        """One object for all, and no more of them."""
        self.array = np.append(self.array, record.finished_at)

    def an_entry(self, record: BatchAck) -> None:
        """In a dictionary within another."""
        self.by_name.setdefault(record.reader, {})[record.sequence] = None


def test_a_batch_leaves_nothing_behind_and_one_number_would_be_seen() -> None:
    """Each leak in turn, in the same training, after the one in which nothing leaks."""
    leaks = Leaks()
    leaking: list[Callable[[BatchAck], None]] = []

    def trained(record: BatchAck) -> None:
        for leak in leaking:
            leak(record)

    with training_in_one_process(job_of_tree(JOB), trained) as training:
        training.train(WARM_UP)
        before = kept(training)
        for leak in (None, leaks.one_number, leaks.a_longer_array, leaks.an_entry):
            leaking[:] = [] if leak is None else [leak]
            training.train(BATCHES)
            after = kept(training)
            # Queues and counts differ by a few from one moment of rest to another, whatever was trained.
            assert (after - before > BATCHES / 2) == (leak is not None), leak
            before = after
