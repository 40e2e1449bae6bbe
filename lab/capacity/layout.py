"""How many of each node, and on which machine each of them is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from ...pipeline.types import Float64Array
from .demands import Demands
from .machine import Machine


@dataclass(frozen=True, order=True)
class Layout:
    """Numbers of nodes and of threads, in order of preference.

    Attributes:
        processes: number of nodes, the coordinator included.
    """

    processes: int = field(init=False)
    trainers: int
    workers: int
    embedding_nodes: int
    embedding_threads: int
    readers: int
    sync_nodes: int

    def __post_init__(self) -> None:
        whole = 1 + self.trainers + self.embedding_nodes + self.readers + self.sync_nodes
        object.__setattr__(self, "processes", whole)


@dataclass(frozen=True)
class Placement:
    """Numbers of nodes on each machine, float64 [machines] each.

    Attributes:
        coordinators: 1 for the coordinator's machine, 0 elsewhere.
    """

    trainers: Float64Array
    embedding_nodes: Float64Array
    readers: Float64Array
    sync_nodes: Float64Array
    coordinators: Float64Array


@dataclass(frozen=True)
class _Process:
    role: int
    load: float
    memory_bytes: float


def memory_of(layout: Layout, demands: Demands) -> tuple[float, float, float, float, float]:
    """Return the bytes of one trainer, embedding node, reader, sync node, coordinator."""
    return (
        demands.trainer_bytes,
        demands.embedding_bytes + demands.rows_bytes / layout.embedding_nodes,
        demands.reader_bytes,
        demands.sync_bytes,
        demands.coordinator_bytes,
    )


def memory_bytes(layout: Layout, demands: Demands) -> float:
    """Return the memory in bytes of all nodes."""
    trainer, embedding, reader, sync, coordinator = memory_of(layout, demands)
    return (
        layout.trainers * trainer
        + layout.embedding_nodes * embedding
        + layout.readers * reader
        + layout.sync_nodes * sync
        + coordinator
    )


def place(layout: Layout, demands: Demands, machine: Machine, machines: int, rate: float) -> Placement | None:
    """Place the largest nodes first, each on the least loaded machine.

    This is the rule of the longest processing time (Graham, SIAM J. Appl. Math. 17(2), 1969).

    Args:
        layout: the nodes.
        demands: what they cost.
        machine: one of the machines.
        machines: their number.
        rate: examples per second at which loads are compared.

    Returns None if memory does not suffice.
    """
    counts = np.zeros((5, machines))
    free = [machine.memory_bytes] * machines
    order = [(0.0, number) for number in range(machines)]
    for process in _processes(layout, demands, rate):
        passed = []
        while order and free[order[0][1]] < process.memory_bytes:
            passed.append(heapq.heappop(order))
        if not order:
            return None
        load, number = heapq.heappop(order)
        counts[process.role, number] += 1.0
        free[number] -= process.memory_bytes
        for entry in (*passed, (load + process.load, number)):
            heapq.heappush(order, entry)
    return Placement(*counts)


def _processes(layout: Layout, demands: Demands, rate: float) -> list[_Process]:
    """Return all nodes, the largest load first. Roles are the rows of `Placement`."""
    memory = memory_of(layout, demands)
    numbers = (layout.trainers, layout.embedding_nodes, layout.readers, layout.sync_nodes, 1)
    seconds = (demands.trainer_seconds, demands.embedding_seconds, demands.reader_seconds, 0.0)
    loads = [
        rate * cost / number if number else 0.0
        for cost, number in zip((*seconds, demands.coordinator_seconds), numbers, strict=True)
    ]
    # A trainer uses the cores that it gets, but no more than it has workers.
    loads[0] = min(loads[0], float(layout.workers))
    processes = [_Process(role, loads[role], memory[role]) for role in range(5) for _ in range(numbers[role])]
    return sorted(processes, key=lambda process: (-process.load, -process.memory_bytes, process.role))
